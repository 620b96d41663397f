"""Whether a tied table is shaped as an input table or as an output table."""
