"""The kinds of nodes that read a matrix, one module each."""
