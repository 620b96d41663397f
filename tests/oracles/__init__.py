"""The loaders themselves judge the predictions: a grid of small checkpoints, loaded by each program."""
