"""What `check` finds, which rules there are, and how findings are mended or waived."""
