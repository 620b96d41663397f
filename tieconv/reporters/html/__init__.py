"""Pages of HTML without scripts."""
