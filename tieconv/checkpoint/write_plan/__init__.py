"""A plan as data: operations, files to write, and promises about them."""
