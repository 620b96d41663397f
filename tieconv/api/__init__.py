"""One function a use case: paths in, frozen evidence or an executable plan out. Each subject has its module.

A planner reads of a model on the Hub its headers and what a proof needs; ``execute`` then fetches it into the local
cache, which ``fetch`` does at once.
Where a directory holds the model in two formats, a planner raises `RefusedError`; with ``drop_other_formats`` it plans
for the one that loaders prefer, which is the one that `inspect` reads, and leaves the files of the other out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieconv.api.analysis import analyze as analyze
    from tieconv.api.biases import plan_bias as plan_bias
    from tieconv.api.comparison import diff as diff
    from tieconv.api.evidence import inspect as inspect
    from tieconv.api.exports import export as export
    from tieconv.api.exports import parity as parity
    from tieconv.api.exports import plan_export as plan_export
    from tieconv.api.fixes import fix as fix
    from tieconv.api.fixes import preview_fixes as preview_fixes
    from tieconv.api.gate import check as check
    from tieconv.api.gate import expand as expand
    from tieconv.api.gate import run_gate as run_gate
    from tieconv.api.graphs import is_graph as is_graph
    from tieconv.api.graphs import plan_graph_dedup as plan_graph_dedup
    from tieconv.api.graphs import plan_graph_untie as plan_graph_untie
    from tieconv.api.hub import plan_push as plan_push
    from tieconv.api.hub import push as push
    from tieconv.api.remedies import plan_action as plan_action
    from tieconv.api.resizing import plan_resize as plan_resize
    from tieconv.api.shards import plan_reindex as plan_reindex
    from tieconv.api.storage import plan_convert as plan_convert
    from tieconv.api.storage import plan_dedup as plan_dedup
    from tieconv.api.ties import plan_retie as plan_retie
    from tieconv.api.ties import plan_set_tie as plan_set_tie
    from tieconv.api.ties import plan_untie as plan_untie

_HOMES = {
    "analyze": "analysis",
    "plan_bias": "biases",
    "diff": "comparison",
    "inspect": "evidence",
    "export": "exports",
    "parity": "exports",
    "plan_export": "exports",
    "fix": "fixes",
    "preview_fixes": "fixes",
    "check": "gate",
    "expand": "gate",
    "run_gate": "gate",
    "is_graph": "graphs",
    "plan_graph_dedup": "graphs",
    "plan_graph_untie": "graphs",
    "plan_push": "hub",
    "push": "hub",
    "plan_action": "remedies",
    "plan_resize": "resizing",
    "plan_reindex": "shards",
    "plan_convert": "storage",
    "plan_dedup": "storage",
    "plan_retie": "ties",
    "plan_set_tie": "ties",
    "plan_untie": "ties",
}


def __getattr__(name: str) -> object:
    """Import a function's module when it is first used: what `inspect` does not need, it does not load."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tieconv.api' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tieconv.api.{_HOMES[name]}"), name)
