"""The embedding space, measured from the weights alone."""
