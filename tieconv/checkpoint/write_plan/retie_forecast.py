"""What the planner of `retie` says of a model before any tensor is compared."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record


@record
class RetieForecast:
    """What a re-tie does besides that both ends read one table, as headers and config tell.

    ``sets_flag``: some loader reads the model as untied, so a re-tie sets the flag. ``exponent``: once tied, the class
    multiplies its logits by 2**exponent (T5 and its kin). ``refused`` says why no re-tie goes ahead whatever the
    tensors hold, ``before`` what must be done before any is written; each is empty where nothing stands in the way.
    """

    sets_flag: bool = False
    exponent: int = 0
    refused: str = ""
    before: str = ""


NOT_ASKED = RetieForecast()
"""Where the question is not what a re-tie does."""
