"""Layouts: the file names, tensor names and documents that other programs load."""
