"""Files of a model as data: tensors and where their bytes lie, documents, what a reader found ambiguous."""
