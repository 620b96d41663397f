"""Mutation testing: change one expression of the package, run the tests that reach it, list the changes they miss."""
