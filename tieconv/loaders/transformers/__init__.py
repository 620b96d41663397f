"""How transformers 4 and 5 take tensors and tie them."""
