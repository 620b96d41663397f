"""What a certificate rests on beside the tensors: defaults of config keys, and the ids that tokenizers make."""
