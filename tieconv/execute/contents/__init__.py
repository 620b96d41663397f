"""Write the bytes of the planned files."""
