"""The facts behind a certificate besides the tensors: defaults of config keys, and the ids of tokenizers."""
