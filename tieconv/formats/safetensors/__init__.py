"""Read and write safetensors files."""
