"""Plan graphs, write them beside OUT, verify them, and rename them."""
