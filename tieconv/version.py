"""The version, in one place; the build reads it from here."""

VERSION = "0.1.0"

REPOSITORY = "https://github.com/OWNER/tieconv"
"""Where the project is published; links in reports start with it."""
