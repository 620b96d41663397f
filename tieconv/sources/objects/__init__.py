"""Read models in object stores by ranges, with obstore."""
