"""Evidence and plans as text: each function returns a string and prints nothing."""
