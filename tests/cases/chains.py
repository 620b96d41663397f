"""The commands that `inspect` recommends, followed to their end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import tieconv as api
from tests.checks.remedy import run
from tieconv.checkpoint.finding import Finding, Remedy
from tieconv.checkpoint.inspection import Inspection

LONGEST = 3
"""Commands that any model needs; a longer chain goes in circles."""

ABOUT_ANOTHER = frozenset({"PEF001"})
"""Rules whose command is about another model than the one inspected: the adapter stays as it is."""


def recommended(inspection: Inspection) -> list[tuple[Finding, Remedy]]:
    return [(finding, finding.remedy) for finding in inspection.findings if finding.remedy]


def chains(folder: Path, work: Path, loader: str | None = None) -> Iterator[tuple[list[str], Path, Inspection]]:
    """Every way through the recommended commands: what was run, the model at the end, what is found there."""
    numbers = count()

    def follow(model: Path, trail: list[str]) -> Iterator[tuple[list[str], Path, Inspection]]:
        evidence = api.inspect(model, consumers=loader)
        steps = recommended(evidence)
        if not steps:
            yield trail, model, evidence
        for finding, remedy in steps:
            assert len(trail) < LONGEST, f"in circles: {trail}"
            out = work / f"out{next(numbers)}"
            run(remedy.command, out)
            here = [*trail, f"{finding.rule}: {' '.join(shlex.split(remedy.command)[1:3])}"]
            after = api.inspect(out, consumers=loader)
            left = [later.rule for later in after.findings]
            assert finding.rule not in left, f"{here} leaves {left}"
            if finding.rule not in ABOUT_ANOTHER:
                yield from follow(out, here)

    yield from follow(folder, [])
