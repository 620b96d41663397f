"""Define the limits of the gates.

Correct graphs measured 0.5 to 1.3 pooled and at most 3 in one case. Faulty graphs measured 9 or more.
"""

RMS_LIMIT = 2.0
"""Limit of the graph's RMS error divided by the floor's, pooled over all cases."""
MAX_LIMIT = 4.0
"""Limit of the graph's largest error divided by the floor's, pooled over all cases."""
CELL_LIMIT = 5.0
"""Limit of the graph's RMS error divided by the floor's in any one case."""
