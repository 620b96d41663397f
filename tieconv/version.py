"""The version, the repository's address, and whether a release is published: each in one place.

Change a value here, then run ``python docs/generate.py``: README, docs and project files follow.
"""

VERSION = "0.1.0"

REPOSITORY = "https://github.com/OWNER/tieconv"
"""Where the project lives; links in reports start with it. OWNER stands for an account that is not chosen yet."""

PUBLISHED = False
"""Whether the package index has a release. Only then do README, docs and hints install tieconv by its name."""
