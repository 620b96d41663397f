"""Plan to remove a training wrapper's prefix from every tensor name, in the files and in their index."""

from __future__ import annotations

from tieconv.architectures.wrappers import unwrapping, wrappers_of
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan import Plan, Promises
from tieconv.plans.build import build
from tieconv.plans.edits import Edits
from tieconv.plans.guards import guard_layout, inspect_hint, refuse
from tieconv.text import count, shown


def plan_strip_prefix(inspection: Inspection) -> Plan:
    """Return the plan that renames the tensors and changes nothing else.

    Raises `RefusedError` if the names have no prefix that tieconv can remove.
    """
    guard_layout(inspection)
    checkpoint = inspection.checkpoint
    changed = unwrapping(checkpoint.tensors)
    if not changed:
        refuse(
            f"{shown(checkpoint.source)}: the tensor names have no removable prefix of a training wrapper",
            f"look at the names: {inspect_hint(inspection)}",
            "reindex.no-prefix",
        )
    edits = Edits(checkpoint)
    for name, bare in changed.items():
        edits.rename(name, bare)
    why = f"{' and '.join(wrappers_of(changed))} left the prefix in {count(len(changed), 'name')}"
    return build(
        "reindex",
        inspection,
        edits,
        tied=None,
        promises=Promises(inspection.config.effective, ()),
        options={"strip-prefix": "true"},
        notes=(why,),
    )
