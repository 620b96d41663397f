"""The answer of `check` in the formats that CI systems read."""
