"""How the tables of a model change over its revisions: the checkpoints of one training run."""
