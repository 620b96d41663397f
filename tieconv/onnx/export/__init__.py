"""`export`: the model traced, its tied matrix stored once, the graph proved."""
