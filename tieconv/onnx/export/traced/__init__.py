"""Change the traced graph before it is written: names of axes, window lengths, and ranges of positions."""
