"""Loaders of inference engines, one module each: what they do with the embedding, the head and its bias."""
