"""A toy that shows what tying does: a generated corpus, small models tied and untied, and their tables aligned."""
