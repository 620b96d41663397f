"""What one stored tensor is to another one: a frozen value type a state, with the figures that the state carries."""
