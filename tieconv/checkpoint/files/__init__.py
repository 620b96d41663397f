"""Files of a model as data: tensors and their byte ranges, documents, ambiguities that a reader reports."""
