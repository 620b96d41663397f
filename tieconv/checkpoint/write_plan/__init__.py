"""A plan as data: operations, files to write, and what is promised about them."""
