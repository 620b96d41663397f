"""Plan the command that a finding recommends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tieconv.api.graphs import is_graph, plan_graph_dedup
from tieconv.api.plans.biases import plan_bias
from tieconv.api.plans.resizing import plan_resize
from tieconv.api.plans.shards import plan_reindex
from tieconv.api.plans.storage import plan_convert, plan_dedup
from tieconv.api.plans.ties import plan_retie, plan_set_tie, plan_untie
from tieconv.errors import RefusedError
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.checkpoint.finding import Action
    from tieconv.onnx.write.plan import PlannedGraphs
    from tieconv.planned import PlannedWrite


def plan_action(action: Action) -> PlannedWrite | PlannedGraphs:
    """Plan the command of a finding. Raises the `RefusedError` of that command."""
    if action.verb == "dedup" and is_graph(action.source):
        return _plan_graph_remedy(action.source)
    names = {"--from": "survivor"}
    options: dict[str, Any] = {
        names.get(flag, flag.lstrip("-").replace("-", "_")): value or True for flag, value in action.options
    }
    match action.verb.split():
        case ["retie"]:
            return plan_retie(action.source, **options)
        case ["untie"]:
            return plan_untie(action.source, **options)
        case ["dedup"]:
            return plan_dedup(action.source, **options)
        case ["reindex"]:
            return plan_reindex(action.source, **options)
        case ["resize"]:
            return plan_resize(action.source, **options)
        case ["convert"]:
            return plan_convert(path=action.source, **options)
        case ["set-tie", flag]:
            return plan_set_tie(flag, action.source, **options)
        case ["bias", verb]:
            return plan_bias(verb, action.source, **options)
    raise ValueError(f"{action.verb!r} is not a command with a plan")


def _plan_graph_remedy(source: str) -> PlannedGraphs:
    """Plan `dedup` of a graph, which keeps every bit of a session's results. Raises if there is nothing to do."""
    planned = plan_graph_dedup(source)
    if not any(matrix.done for matrix in planned.matrices):
        left = next((matrix.left for matrix in planned.matrices if matrix.left), "nothing can be stored once")
        raise RefusedError(f"dedup does not change the graph: {shown(left)}")
    return planned
