"""Run mutants and print those that no test notices: ``python -m tests.mutants --count N --seed S [--room ROOM]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from tests.mutants.mutations import Mutant, equivalent, key, sample
from tests.mutants.rooms import TESTS, room_of
from tests.mutants.scratch import Scratch

AIM = 0.95


def main() -> int:
    """Run what the arguments ask for; 1 where fewer than `AIM` of the mutants are noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="Mutants to take, as many of each room.")
    parser.add_argument("--seed", type=int, default=0, help="Where the random choice begins.")
    parser.add_argument("--room", action="append", choices=[*TESTS], default=[], help="Only this room; repeatable.")
    parser.add_argument("--keep", type=Path, help="Folder for what the tests reach: a later run reads it there.")
    parser.add_argument("--list", action="store_true", help="Print the mutants and run nothing.")
    asked = parser.parse_args()
    chosen = sample(asked.count, asked.seed, set(asked.room))
    known = equivalent()
    valid = [mutant for mutant in chosen if key(mutant) not in known]
    if asked.list:
        print(*valid, sep="\n")
        return 0
    survivors = run(valid, asked.keep)
    noticed = len(valid) - len(survivors)
    print(f"{noticed} of {len(valid)} mutants noticed; {len(chosen) - len(valid)} more are known to change nothing")
    return int(noticed < AIM * len(valid))


def run(chosen: list[Mutant], records_folder: Path | None = None) -> list[Mutant]:
    """The survivors, each printed as it is met."""
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(Path(folder), records_folder)
        for room, listed in groupby(chosen, key=lambda mutant: room_of(mutant.file)):
            every = list(listed)
            scratch.enter(room, TESTS[room])
            missed = []
            for mutant in every:
                noticed = scratch.notices(mutant)
                missed += [] if noticed else [mutant]
                print(f"{'noticed' if noticed else 'survived'}: {mutant}", flush=True)
            survivors += missed
            print(f"{room}: {len(every) - len(missed)} of {len(every)} noticed", flush=True)
        scratch.close()
    return survivors


if __name__ == "__main__":
    sys.exit(main())
