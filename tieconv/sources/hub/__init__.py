"""Read models on the Hugging Face Hub, by ranges and through the cache of huggingface_hub."""
