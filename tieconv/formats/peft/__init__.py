"""Read PEFT adapters."""
