"""Change the format that loaders prefer in a directory with two formats, and drop the others."""

from __future__ import annotations

from dataclasses import replace

from tieconv.checkpoint.model_files import TWO_FORMATS, Checkpoint
from tieconv.checkpoint.write_plan import DropFile, Plan
from tieconv.text import count


def alone(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint without the files of other formats. ``others`` still lists them."""
    return replace(
        checkpoint,
        companions={name: size for name, size in checkpoint.companions.items() if name not in checkpoint.others},
        cautions=tuple(caution for caution in checkpoint.cautions if caution.code != TWO_FORMATS),
    )


def dropping(plan: Plan) -> Plan:
    """Add to a plan for an `alone` checkpoint the files to drop.

    The fingerprint has the state of each, so a file that has changed since is refused.
    """
    others = plan.checkpoint.others
    if not others:
        return plan
    written = {output.name for output in plan.weights} | {text.name for text in plan.texts}
    drops = tuple(DropFile(name, state.size) for name, state in others.items())
    return replace(
        plan,
        fingerprint={**plan.fingerprint, **others},
        operations=(*drops, *plan.operations),
        removed=(*plan.removed, *(name for name in others if name not in written)),
        summary=f"{plan.summary}; {count(len(others), 'file')} of another format dropped",
    )
