"""Compare a graph with the torch reference: weights, structure, logits and cached steps."""
