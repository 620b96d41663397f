"""Read the state dict of a torch file, a ZIP archive or a legacy file, without running its pickle."""
