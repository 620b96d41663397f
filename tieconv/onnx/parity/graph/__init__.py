"""Run a graph as a language model: its inputs, its cache, its passes."""
