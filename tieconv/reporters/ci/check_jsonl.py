"""The gate's answer as JSON lines: one model a line, each a `tieconv.check/1` document of its own."""

from __future__ import annotations

import json
from dataclasses import replace

from tieconv.checkpoint.results.checked import CheckReport


def render(report: CheckReport) -> str:
    """A line for each model, in ASCII, in the order in which they were given."""
    lines = (json.dumps(replace(report, models=(model,)).to_dict()) for model in report.models)
    # A CI runner obeys `##[` anywhere in a line; only strings hold a `#`.
    return "\n".join(lines).replace("##", "#\\u0023")
