"""Look up what each architecture ties, names, biases and scales, in tables measured on the classes.

``fixtures/families.py`` writes the tables in ``data/``. This package imports no model.
"""

from tieconv.architectures.effective_flag import effective, gate, loads_both
from tieconv.architectures.lookup import find
from tieconv.architectures.stored_names import locate, spelled, unexplained

__all__ = ["effective", "find", "gate", "loads_both", "locate", "spelled", "unexplained"]
