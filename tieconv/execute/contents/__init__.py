"""The bytes of the files to write."""
