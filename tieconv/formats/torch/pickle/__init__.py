"""A pickle machine that builds plain values and tensors, and calls nothing."""
