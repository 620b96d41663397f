"""Find, prove, untie and re-tie shared embedding and lm_head tensors in checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.version import VERSION as __version__

if TYPE_CHECKING:
    from tieconv.api import (
        analyze,
        check,
        diff,
        export,
        inspect,
        parity,
        plan_bias,
        plan_convert,
        plan_dedup,
        plan_export,
        plan_graph_dedup,
        plan_graph_untie,
        plan_push,
        plan_reindex,
        plan_resize,
        plan_retie,
        plan_set_tie,
        plan_untie,
        push,
    )
    from tieconv.checkpoint.results.analysis import Analysis
    from tieconv.checkpoint.results.checked import CheckReport
    from tieconv.checkpoint.results.comparison import Comparison
    from tieconv.checkpoint.results.parity import Parity
    from tieconv.errors import TieconvError
    from tieconv.planned import PlannedWrite

__all__ = [
    "Analysis",
    "CheckReport",
    "Comparison",
    "Parity",
    "PlannedWrite",
    "TieconvError",
    "__version__",
    "analyze",
    "check",
    "diff",
    "export",
    "inspect",
    "parity",
    "plan_bias",
    "plan_convert",
    "plan_dedup",
    "plan_export",
    "plan_graph_dedup",
    "plan_graph_untie",
    "plan_push",
    "plan_reindex",
    "plan_resize",
    "plan_retie",
    "plan_set_tie",
    "plan_untie",
    "push",
]


_HOMES = {
    "Analysis": "checkpoint.results.analysis",
    "TieconvError": "errors",
    "PlannedWrite": "planned",
    "Comparison": "checkpoint.results.comparison",
    "CheckReport": "checkpoint.results.checked",
    "Parity": "checkpoint.results.parity",
}


def __getattr__(name: str) -> object:
    """Import a verb when it is first used: `import tieconv` costs what Python costs."""
    if name not in __all__:
        raise AttributeError(f"module 'tieconv' has no attribute {name!r}")
    from importlib import import_module

    import_module("tieconv.errors").require_posix()
    return getattr(import_module(f"tieconv.{_HOMES.get(name, 'api')}"), name)
