"""Rewrite the nodes that read a matrix, one module for each kind of node."""
