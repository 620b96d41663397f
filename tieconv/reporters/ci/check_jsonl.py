"""The report of `tieconv check` as JSON lines: each line is a `tieconv.check/1` document with one model."""

from __future__ import annotations

import json
from dataclasses import replace

from tieconv.checkpoint.results.checked import CheckReport


def render(report: CheckReport) -> str:
    """Return a line for each model, in ASCII, in the given order."""
    lines = (json.dumps(replace(report, models=(model,)).to_dict()) for model in report.models)
    # A CI runner obeys `##[` anywhere in a line; only strings hold a `#`.
    return "\n".join(lines).replace("##", "#\\u0023")
