"""The file names of a torch distributed checkpoint."""

METADATA = ".metadata"
SUFFIX = ".distcp"
