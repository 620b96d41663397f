"""One function a use case: paths in, frozen evidence or an executable plan out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checks import run_checks
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.sources.local import locate, open_files

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.planned import PlannedWrite


def inspect(
    path: str | Path = ".",
    *,
    depth: Depth | str = Depth.CANDIDATES,
    embed: str | None = None,
    head: str | None = None,
) -> Inspection:
    """What MODEL stores, what ties, what the config declares, and findings with the next command.

    ``embed`` and ``head`` name the input and the output embedding of an unknown architecture. Raises
    `UnreadableError` for input that is missing or malformed.
    """
    listing = locate(str(path))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
        evidence = inspect_checkpoint(checkpoint, files, Depth(depth), embed=embed, head=head)
    return replace(evidence, findings=run_checks(evidence))


def plan_retie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    survivor: str | None = None,
    force: bool = False,
    embed: str | None = None,
    head: str | None = None,
) -> PlannedWrite:
    """The plan that drops the redundant copies of tied tensors and sets the config to tied.

    ``bias`` is ``keep``, ``zero`` or ``strip``; ``survivor`` (``embed`` or ``head``) with ``force`` ties tensors
    that are not bit-equal. Raises `RefusedError` where the function would change.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans import BiasChoice, Survivor
    from tieconv.plans import plan_retie as make

    plan = make(
        inspect(path, embed=embed, head=head),
        bias=BiasChoice(bias),
        survivor=Survivor(survivor) if survivor else None,
        force=force,
    )
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))


def plan_untie(
    path: str | Path = ".",
    *,
    bias: str = "keep",
    keep_flag: bool = False,
    embed: str | None = None,
    head: str | None = None,
) -> PlannedWrite:
    """The plan that stores the head, and every other tied name, as a tensor of its own.

    ``keep_flag`` leaves the config tied. Raises `RefusedError` where the function would change.
    """
    from tieconv.planned import PlannedWrite
    from tieconv.plans import BiasChoice
    from tieconv.plans import plan_untie as make

    plan = make(
        inspect(path, embed=embed, head=head),
        bias=BiasChoice(bias),
        keep_flag=keep_flag,
    )
    return PlannedWrite(plan, lambda out: inspect(out, embed=embed, head=head))
