"""A graph run as a language model: its inputs, its cache, its passes."""
