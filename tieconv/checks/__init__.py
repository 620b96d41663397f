"""Rules over inspections: pure, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.inspection import BiasState, Finding, Inspection, State, Tie

if TYPE_CHECKING:
    from tieconv.checks.interface import Rule

    RULES: tuple[Rule, ...]


def run_checks(inspection: Inspection) -> tuple[Finding, ...]:
    """What the rules find, the worst first, then by rule."""
    if is_plain(inspection):
        return ()
    from tieconv.checks.registry import run_all

    return run_all(inspection)


def is_plain(inspection: Inspection) -> bool:
    """A tied model with nothing to say about, told without loading a rule: most models are one.

    Narrow on purpose. A test runs every rule on every plain model that the tests have.
    """
    checkpoint, config = inspection.checkpoint, inspection.config
    declared = config.declared and all(entry.value is True for entry in config.declared)
    bias = inspection.head.output_bias
    return (
        inspection.family.knowledge is Knowledge.TABLE
        and inspection.family.tying is Tying.CAN
        and bool(declared)
        and not (checkpoint.cautions or checkpoint.special or inspection.duplicates)
        and inspection.head.input_embedding is not None
        and (bias is None or bias.state is BiasState.ABSENT)
        and all(map(_is_stored_once, inspection.ties))
    )


def _is_stored_once(tie: Tie) -> bool:
    states = [member.state for member in tie.members if member.stored]
    return tie.declared and tie.canonical_stored and states == [State.CANONICAL]


def __getattr__(name: str) -> object:
    """``RULES``, loaded when it is asked for."""
    if name == "RULES":
        from tieconv.checks.registry import RULES

        return RULES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
