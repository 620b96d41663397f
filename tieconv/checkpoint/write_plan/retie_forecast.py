"""The effects of `retie` on a model, as its planner predicts them before any comparison of tensors."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record


@record
class RetieForecast:
    """The effects of a re-tie besides one table for both ends, from headers and config.

    ``sets_flag``: some loader reads the model as untied, so a re-tie sets the flag. ``exponent``: once tied, the class
    multiplies its logits by 2**exponent (T5 and related classes). ``refused`` says why `retie` refuses the model
    whatever the tensors hold. ``before`` says what to do before `retie` writes. Each is empty if there is no obstacle.
    """

    sets_flag: bool = False
    exponent: int = 0
    refused: str = ""
    before: str = ""


NOT_ASKED = RetieForecast()
"""The forecast if the effects of a re-tie do not matter."""
