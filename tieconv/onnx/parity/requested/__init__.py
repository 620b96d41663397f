"""What a user wants to be measured besides the usual batches."""
