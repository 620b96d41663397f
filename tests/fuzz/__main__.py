"""Run a target: ``python -m tests.fuzz TARGET --cases N --seed S``, or look at a kept seed with ``--replay FILE``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

if not {"hub", "listing"} & {*sys.argv[1:2]}:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NO_COLOR", "1")

from tests.fuzz.case import unpack
from tests.fuzz.runner import replay, run
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run what the arguments ask for; 1 where a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=(*TARGETS, "all"))
    parser.add_argument("--cases", type=int, default=20_000, help="Cases of each target.")
    parser.add_argument("--seed", type=int, default=0, help="Where the random numbers begin.")
    parser.add_argument("--first", type=int, default=0, help="Number of the first case.")
    parser.add_argument("--limit", type=float, default=math.inf, help="Seconds after which a target ends early.")
    parser.add_argument("--replay", type=Path, nargs="+", help="Seed files to look at instead.")
    asked = parser.parse_args()
    if asked.replay is not None:
        found = [f"{path.name}: {fault}" for path in asked.replay for fault in replay(unpack(path.read_text())[0])]
        print(*(found or ["nothing is wrong"]), sep="\n")
        return bool(found)
    failed = 0
    for target in TARGETS if asked.target == "all" else (asked.target,):
        tally = run(target, asked.cases, asked.seed, asked.first, limit=asked.limit)
        print(tally.line(), flush=True)
        for reason, number in tally.listed.most_common():
            print(f"  {number:,} × {reason}")
        failed += len(tally.failures)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
