"""The relation of one stored tensor to another: one frozen value type for each state, with its figures."""
