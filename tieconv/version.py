"""The version, the address of the repository, and whether a release is published.

After a change here, run ``python docs/generate.py``: it updates README, docs and project files.
"""

VERSION = "0.1.0"

REPOSITORY = "https://github.com/OWNER/tieconv"
"""The address of the project; links in reports start with it. OWNER is a placeholder for the account."""

PUBLISHED = False
"""Whether the package index has a release. Only then README, docs and hints install tieconv by its name."""
