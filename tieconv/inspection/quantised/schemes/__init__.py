"""Recognise how a matrix is quantised, from the names, types and shapes of its parts and from the config."""
