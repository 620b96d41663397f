"""Run an encoder and a decoder with caches as one model."""
