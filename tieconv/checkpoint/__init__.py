"""What a checkpoint is: frozen data, no tensor bytes, no input or output."""
