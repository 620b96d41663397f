"""Loaders of inference engines, one module each: how they load the embedding, the head and its bias."""
