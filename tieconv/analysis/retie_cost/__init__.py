"""The cost of re-tying: bounds from the weights, measurements on a text."""
