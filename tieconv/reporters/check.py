"""The reporters of `tieconv check`, by the names of their formats."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from tieconv.checkpoint.checked import CheckReport
from tieconv.reporters.layout import Paint, plain

REPORTERS = {name: f"tieconv.reporters.check_{name}" for name in ("text", "json")}


def render(format: str, report: CheckReport, paint: Paint = plain, width: int | None = None) -> str:
    """The report in a format, without a newline at the end."""
    module = import_module(REPORTERS[format])
    if format == "text":
        return cast("Callable[[CheckReport, Paint, int | None], str]", module.render)(report, paint, width)
    return cast("Callable[[CheckReport], str]", module.render)(report)
