"""What the head is to the embedding: the first class that fits, with its proof."""
