"""A training checkpoint holds optimizer state for a parameter that it does not store.

## What it does
Compares the names in the optimizer's state with the stored tensors of a distributed checkpoint. It reports a parameter
that the optimizer trained and that no tensor stores. A tied head shares the embedding's state, so it is not reported.

## Why it matters
The flag says tied, but training made the head a separate parameter. The save left the head out, because the flag says
that the embedding restores it. A run that resumes then starts with another head, and its loss jumps.

## Example
`"tie_word_embeddings": true`, state for both names, and only the embedding stored:

    error TRN001: The optimizer trained lm_head.weight, but the checkpoint does
    not store it. A resumed run starts with other values.

## How to fix
This checkpoint does not contain the trained values. Before the next run, call `model.tie_weights()` once the
model is on its device. Or set the flag to false and save again. An earlier full save may hold the head.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.stored_names import without_wrappers
from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import evidence
from tieconv.checks.interface import Rule

MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg"})
"""State that optimizers of torch keep for a parameter once it has a gradient."""
_SHOWN = 3


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding. Optimizers that number their parameters give no names to compare."""
    states = inspection.checkpoint.table.training
    trained = {parameter for name in states if (parameter := _parameter(name))}
    if not trained:
        return
    stored = {_module(name) for name in inspection.checkpoint.tensors}
    lost = [name for name in sorted(trained) if _module(name) not in stored]
    lost = [name for name in lost if not _shares_state(inspection, name, trained)]
    if lost and len(lost) < len(trained):
        modules = tuple(_module(name) for name in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        pronoun = "it" if len(lost) == 1 else "them"
        yield RULE.finding(
            f"The optimizer trained {evidence.listed(modules)}{more}, but the checkpoint does not store {pronoun}. "
            "A resumed run starts with other values.",
            modules,
        )


def _parameter(name: str) -> str | None:
    """Return the parameter that a moment belongs to, below the keys of the optimizer; ``None`` for other state."""
    steps = without_wrappers(name).split(".")
    if MOMENTS.isdisjoint(steps):
        return None
    parameter = [step for step in steps if step not in MOMENTS]
    return ".".join(parameter) if parameter[-1] in {"weight", "bias"} and len(parameter) > 1 else None


def _module(name: str) -> str:
    """Return the last two steps of a name, such as ``lm_head.weight``: prefixes differ between model and optimizer."""
    return ".".join(without_wrappers(name).split(".")[-2:])


def _shares_state(inspection: Inspection, lost: str, trained: set[str]) -> bool:
    """Return whether the state under this name is that of a shared parameter, which may be stored under another."""
    modules = {_module(name) for name in trained}
    for tie in inspection.ties:
        members = {_module(member.name) for member in tie.members}
        if _module(lost) in members and len(members & modules) == 1:
            return True
    return False


RULE = Rule("TRN001", "trained-tensor-not-saved", Level.ERROR, __doc__ or "", find)
