"""The file names of a torch distributed checkpoint."""

import re

METADATA = ".metadata"
SUFFIX = ".distcp"
TENSORS = "*.distcp"
"""The file name in the byte ranges of records: the dense tensors, one after the other. No file has this name."""
SHARD = re.compile(r"shard-(\d{5})-model-(\d{5})-of-(\d{5})\.safetensors")
"""The files that `HuggingFaceStorageWriter(save_distributed=True)` writes: each rank has its own numbers."""
