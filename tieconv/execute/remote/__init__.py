"""Write a model to an object store: by copies of the server, or by uploads."""
