"""Plans that write a model, one module a subject."""
