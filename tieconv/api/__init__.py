"""The functions of tieconv: each takes paths and returns frozen evidence or an executable plan.

For a model on the Hub, a planner reads the headers and the bytes that a proof needs. ``execute`` then downloads the
model into the local cache; with ``fetch`` the planner downloads it at once.

A planner raises `RefusedError` if a directory has the model in two formats. With ``drop_other_formats`` it plans for
the format that loaders prefer and `inspect` reads. The result has no files of the other format.

One module has one subject. This package holds only what the command line needs beside these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieconv.checkpoint.graph_plan import ExportOutcome as ExportOutcome, GraphOutcome as GraphOutcome
    from tieconv.checkpoint.inspection import Fetched as Fetched
    from tieconv.checkpoint.results.checked import CheckedModel as CheckedModel, CheckReport as CheckReport
    from tieconv.checkpoint.results.fleet import FleetProgress as FleetProgress
    from tieconv.checkpoint.results.parity import Verdict as Verdict
    from tieconv.checkpoint.write_plan import Outcome as Outcome
    from tieconv.gate.model_sources import is_collection as is_collection, is_list as is_list
    from tieconv.gate.policy import Policy as Policy
    from tieconv.onnx.write.plan import PlannedGraphs as PlannedGraphs
    from tieconv.planned import PlannedWrite as PlannedWrite, WriteOptions as WriteOptions
    from tieconv.sources import is_pattern as is_pattern, is_remote as is_remote
    from tieconv.sources.ranged import anything_waits as anything_waits
    from tieconv.sources.temporary import remove_temporary as remove_temporary
    from tieconv.sources.user_files import (
        guard_report as guard_report,
        write_bytes as write_bytes,
        write_reports as write_reports,
        write_text as write_text,
    )

_HOMES = {
    "checkpoint.graph_plan": ("GraphOutcome",),
    "checkpoint.write_plan": ("Outcome",),
    "checkpoint.results.parity": ("Verdict",),
    "gate.model_sources": ("is_collection", "is_list"),
    "sources": ("is_pattern", "is_remote"),
    "sources.ranged": ("anything_waits",),
    "sources.temporary": ("remove_temporary",),
    "sources.user_files": ("guard_report", "write_bytes", "write_reports", "write_text"),
}
"""The module, relative to `tieconv`, of each name that is needed when a command runs."""


def __getattr__(name: str) -> object:
    """Import a module at its first use, so that `inspect` starts fast."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"tieconv.{module}"), name)
    raise AttributeError(f"module 'tieconv.api' has no attribute {name!r}")
