"""A pickle interpreter that builds basic values and tensors, and never calls what the pickle names."""
