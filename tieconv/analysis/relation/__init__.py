"""How the head relates to the embedding: the first class that fits, with its proof."""
