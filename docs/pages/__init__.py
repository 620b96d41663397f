"""Pages that follow from the code."""
