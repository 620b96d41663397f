"""Plan the commands that write a model, one module for each subject."""
