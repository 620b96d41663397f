"""Send every id of the vocabulary through the part of a graph that reads token ids."""
