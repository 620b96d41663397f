"""One module for each command that plans a change."""
