"""The step that makes a write visible, and what must hold before it."""
