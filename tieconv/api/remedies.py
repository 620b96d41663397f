"""The plan of a remedy that a finding offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tieconv.api.biases import plan_bias
from tieconv.api.shards import plan_reindex
from tieconv.api.storage import plan_convert, plan_dedup
from tieconv.api.ties import plan_retie, plan_set_tie, plan_untie

if TYPE_CHECKING:
    from tieconv.checkpoint.finding import Action
    from tieconv.planned import PlannedWrite


def plan_action(action: Action) -> PlannedWrite:
    """The plan of a remedy. Raises `RefusedError` as the verb does."""
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
        case ["convert"]:
            return plan_convert(path=action.source, **options)
        case ["set-tie", flag]:
            return plan_set_tie(flag, action.source, **options)
        case ["bias", verb]:
            return plan_bias(verb, action.source, **options)
    raise ValueError(f"{action.verb!r} is no command with a plan")
