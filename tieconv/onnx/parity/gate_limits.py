"""What the gates allow: healthy graphs measured 0.5 to 1.3 pooled and at most 3 in one case, faults from 9 up."""

RMS_LIMIT = 2.0
"""RMS error over the floor's, pooled."""
MAX_LIMIT = 4.0
"""Largest error over the floor's, pooled."""
CELL_LIMIT = 5.0
"""RMS error over the floor's in any one case."""
