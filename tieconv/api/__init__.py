"""The functions of tieconv: each takes paths and returns frozen evidence or an executable plan.

For a model on the Hub, a planner reads the headers and the bytes that a proof needs. ``execute`` then downloads the
model into the local cache; with ``fetch`` the planner downloads it at once.

A planner raises `RefusedError` if a directory has the model in two formats. With ``drop_other_formats`` it plans for
the format that loaders prefer and `inspect` reads. The result has no files of the other format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieconv.api.analysis import analyze as analyze
    from tieconv.api.comparison import diff as diff
    from tieconv.api.demonstration import demo_table as demo_table
    from tieconv.api.demonstration import run_demo as run_demo
    from tieconv.api.evidence import inspect as inspect
    from tieconv.api.exports import export as export
    from tieconv.api.exports import parity as parity
    from tieconv.api.exports import plan_export as plan_export
    from tieconv.api.findings.baselines import write_baseline as write_baseline
    from tieconv.api.findings.fixes import fix as fix
    from tieconv.api.findings.fixes import preview_fixes as preview_fixes
    from tieconv.api.findings.gate import check as check
    from tieconv.api.findings.gate import expand as expand
    from tieconv.api.findings.gate import find_policy as find_policy
    from tieconv.api.findings.gate import run_gate as run_gate
    from tieconv.api.findings.remedies import plan_action as plan_action
    from tieconv.api.findings.rule_catalogue import find_rule as find_rule
    from tieconv.api.findings.rule_catalogue import rules as rules
    from tieconv.api.findings.rule_catalogue import select_rules as select_rules
    from tieconv.api.graphs import is_graph as is_graph
    from tieconv.api.graphs import plan_graph_dedup as plan_graph_dedup
    from tieconv.api.graphs import plan_graph_untie as plan_graph_untie
    from tieconv.api.hub import plan_push as plan_push
    from tieconv.api.hub import push as push
    from tieconv.api.plans.biases import plan_bias as plan_bias
    from tieconv.api.plans.resizing import plan_resize as plan_resize
    from tieconv.api.plans.shards import plan_reindex as plan_reindex
    from tieconv.api.plans.storage import plan_convert as plan_convert
    from tieconv.api.plans.storage import plan_dedup as plan_dedup
    from tieconv.api.plans.ties import plan_retie as plan_retie
    from tieconv.api.plans.ties import plan_set_tie as plan_set_tie
    from tieconv.api.plans.ties import plan_untie as plan_untie
    from tieconv.api.reports import guard_report as guard_report
    from tieconv.api.reports import write_report as write_report
    from tieconv.api.training_run import analyze_revisions as analyze_revisions
    from tieconv.checkpoint.graph_plan import ExportOutcome as ExportOutcome
    from tieconv.checkpoint.graph_plan import GraphOutcome as GraphOutcome
    from tieconv.checkpoint.inspection import Fetched as Fetched
    from tieconv.checkpoint.results.checked import CheckedModel as CheckedModel
    from tieconv.checkpoint.results.checked import CheckReport as CheckReport
    from tieconv.checkpoint.results.fleet import CommandRun as CommandRun
    from tieconv.checkpoint.results.fleet import FleetProgress as FleetProgress
    from tieconv.checkpoint.results.parity import Parity as Parity
    from tieconv.checkpoint.results.parity import Verdict as Verdict
    from tieconv.checkpoint.write_plan import Outcome as Outcome
    from tieconv.checks.evidence import Rule as Rule
    from tieconv.gate.model_sources import is_collection as is_collection
    from tieconv.gate.model_sources import is_list as is_list
    from tieconv.gate.policy import Policy as Policy
    from tieconv.onnx.export.plan import PlannedExport as PlannedExport
    from tieconv.onnx.write.plan import PlannedGraphs as PlannedGraphs
    from tieconv.planned import PlannedWrite as PlannedWrite
    from tieconv.planned import Verify as Verify
    from tieconv.planned import WriteOptions as WriteOptions
    from tieconv.sources import is_remote as is_remote
    from tieconv.sources.hub.repo_path import is_pattern as is_pattern
    from tieconv.sources.temporary import remove_temporary as remove_temporary
    from tieconv.sources.threads import anything_waits as anything_waits

_HOMES = {
    "analyze": "api.analysis",
    "write_baseline": "api.findings.baselines",
    "plan_bias": "api.plans.biases",
    "diff": "api.comparison",
    "demo_table": "api.demonstration",
    "run_demo": "api.demonstration",
    "inspect": "api.evidence",
    "analyze_revisions": "api.training_run",
    "export": "api.exports",
    "parity": "api.exports",
    "plan_export": "api.exports",
    "fix": "api.findings.fixes",
    "preview_fixes": "api.findings.fixes",
    "check": "api.findings.gate",
    "expand": "api.findings.gate",
    "find_policy": "api.findings.gate",
    "run_gate": "api.findings.gate",
    "is_graph": "api.graphs",
    "plan_graph_dedup": "api.graphs",
    "plan_graph_untie": "api.graphs",
    "plan_push": "api.hub",
    "push": "api.hub",
    "plan_action": "api.findings.remedies",
    "guard_report": "api.reports",
    "write_report": "api.reports",
    "plan_resize": "api.plans.resizing",
    "find_rule": "api.findings.rule_catalogue",
    "rules": "api.findings.rule_catalogue",
    "select_rules": "api.findings.rule_catalogue",
    "plan_reindex": "api.plans.shards",
    "plan_convert": "api.plans.storage",
    "plan_dedup": "api.plans.storage",
    "plan_retie": "api.plans.ties",
    "plan_set_tie": "api.plans.ties",
    "plan_untie": "api.plans.ties",
    "GraphOutcome": "checkpoint.graph_plan",
    "Fetched": "checkpoint.inspection",
    "Outcome": "checkpoint.write_plan",
    "CheckReport": "checkpoint.results.checked",
    "CheckedModel": "checkpoint.results.checked",
    "CommandRun": "checkpoint.results.fleet",
    "FleetProgress": "checkpoint.results.fleet",
    "ExportOutcome": "checkpoint.graph_plan",
    "Parity": "checkpoint.results.parity",
    "Verdict": "checkpoint.results.parity",
    "Rule": "checks.evidence",
    "Policy": "gate.policy",
    "PlannedExport": "onnx.export.plan",
    "PlannedGraphs": "onnx.write.plan",
    "PlannedWrite": "planned",
    "Verify": "planned",
    "WriteOptions": "planned",
    "is_remote": "sources",
    "is_collection": "gate.model_sources",
    "is_list": "gate.model_sources",
    "is_pattern": "sources.hub.repo_path",
    "anything_waits": "sources.threads",
    "remove_temporary": "sources.temporary",
}
"""The module of each name, relative to `tieconv`: functions, and the types that they take and return."""


def __dir__() -> list[str]:
    """List the names that `__getattr__` can import, loaded or not."""
    return [*_HOMES, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> object:
    """Import a function's module at its first use, so that `inspect` starts fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tieconv.api' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tieconv.{_HOMES[name]}"), name)
