"""What re-tying costs: bounds from the weights, measurements on a text."""
