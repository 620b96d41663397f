"""Find, prove, untie and re-tie shared embedding and lm_head tensors in checkpoints.

Start with these five functions. Each takes the path of a model; see `help(tieconv.inspect)` and docs/python.md.

    inspect(path)      Is the head tied (`.headline`), and what is wrong (`.findings`)?
    check(paths)       May the models be released? `.exit_code` is that of the command.
    diff(one, two)     Do two models compute the same?
    plan_untie(path)   What would untying write? `.execute(out)` writes it.
    plan_retie(path)   What would re-tying write? `.execute(out)` writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.version import VERSION as __version__

if TYPE_CHECKING:
    from tieconv.api.analysis import analyze, analyze_revisions
    from tieconv.api.check import check, explain
    from tieconv.api.evidence import diff, inspect
    from tieconv.api.graphs import export, parity, plan_export, plan_graph_dedup, plan_graph_untie
    from tieconv.api.hub import plan_push, push
    from tieconv.api.plans import (
        plan_bias,
        plan_convert,
        plan_dedup,
        plan_reindex,
        plan_resize,
        plan_retie,
        plan_set_tie,
        plan_untie,
    )
    from tieconv.checkpoint.graph_plan import ExportOutcome, GraphOutcome
    from tieconv.checkpoint.inspection import Depth, Inspection
    from tieconv.checkpoint.results.analysis import Analysis, Evolution
    from tieconv.checkpoint.results.checked import CheckReport
    from tieconv.checkpoint.results.comparison import Comparison
    from tieconv.checkpoint.results.parity import Parity
    from tieconv.checkpoint.results.push import Push
    from tieconv.checkpoint.write_plan import Outcome
    from tieconv.errors import (
        DestinationError,
        MissingPackageError,
        RefusedError,
        SettingsError,
        TieconvError,
        UnreadableError,
    )
    from tieconv.loaders.registry import UnknownConsumerError
    from tieconv.planned import PlannedWrite

__all__ = [
    "Analysis", "CheckReport", "Comparison", "Depth", "DestinationError", "Evolution", "ExportOutcome", "GraphOutcome",
    "Inspection", "MissingPackageError", "Outcome", "Parity", "PlannedWrite", "Push", "RefusedError", "SettingsError",
    "TieconvError", "UnknownConsumerError", "UnreadableError", "__version__", "analyze", "analyze_revisions", "check",
    "diff", "explain", "export", "inspect", "parity", "plan_bias", "plan_convert", "plan_dedup", "plan_export",
    "plan_graph_dedup", "plan_graph_untie", "plan_push", "plan_reindex", "plan_resize", "plan_retie", "plan_set_tie",
    "plan_untie", "push",
]  # fmt: skip


_HOMES = {
    "api.analysis": ("analyze", "analyze_revisions"),
    "api.check": ("check", "explain"),
    "api.evidence": ("diff", "inspect"),
    "api.graphs": ("export", "parity", "plan_export", "plan_graph_dedup", "plan_graph_untie"),
    "api.hub": ("plan_push", "push"),
    "api.plans": ("plan_bias", "plan_convert", "plan_dedup", "plan_reindex", "plan_resize", "plan_retie",
                  "plan_set_tie", "plan_untie"),
    "checkpoint.graph_plan": ("ExportOutcome", "GraphOutcome"),
    "checkpoint.inspection": ("Depth", "Inspection"),
    "checkpoint.results.analysis": ("Analysis", "Evolution"),
    "checkpoint.results.checked": ("CheckReport",),
    "checkpoint.results.comparison": ("Comparison",),
    "checkpoint.results.parity": ("Parity",),
    "checkpoint.results.push": ("Push",),
    "checkpoint.write_plan": ("Outcome",),
    "loaders.registry": ("UnknownConsumerError",),
    "errors": ("DestinationError", "MissingPackageError", "RefusedError", "SettingsError", "TieconvError",
               "UnreadableError"),
    "planned": ("PlannedWrite",),
}  # fmt: skip
"""The names of each module, which is relative to `tieconv`."""


def __dir__() -> list[str]:
    """List the public names, loaded or not, for `dir(tieconv)` and tab completion."""
    return [*__all__, *(name for name in globals() if name.startswith("__") and name not in __all__)]


if not TYPE_CHECKING:  # a type checker uses the imports above, and reports a misspelled name

    def __getattr__(name: str) -> object:
        """Import a name at its first use, so that `import tieconv` takes almost no time."""
        if name not in __all__:
            raise AttributeError(f"module 'tieconv' has no attribute {name!r}")
        from importlib import import_module

        home = next(module for module, names in _HOMES.items() if name in names)
        return getattr(import_module(f"tieconv.{home}"), name)
