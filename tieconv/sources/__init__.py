"""Where a MODEL comes from."""
