"""Which mutants a run takes: as many of each room as of the others, less those that are known to change nothing."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

from tests.mutants.mutations import Mutant, mutants
from tests.mutants.rooms import ROOT, modules, room_of

RECORD = Path(__file__).with_name("equivalent.json")
"""Mutants that no test can notice, each with its reason."""

KEYS = ("file", "within", "text", "before", "after")


def key(mutant: Mutant) -> tuple[str, ...]:
    """What names a mutant however the lines around it move."""
    return mutant.file, mutant.within, mutant.text, " ".join(mutant.before.split()), mutant.after


def equivalent() -> dict[tuple[str, ...], str]:
    """The reasons in `RECORD` by the keys of their mutants."""
    entries = json.loads(RECORD.read_text(encoding="utf-8"))
    return {tuple(entry[name] for name in KEYS): entry["reason"] for entry in entries}


def population(rooms: set[str]) -> dict[str, list[Mutant]]:
    """Every mutant of the rooms, by room."""
    by_room = defaultdict(list)
    for file in modules():
        if not rooms or room_of(file) in rooms:
            by_room[room_of(file)] += mutants(file, (ROOT / file).read_bytes())
    return {room: every for room, every in by_room.items() if every}


def sample(count: int, seed: int, rooms: set[str]) -> list[Mutant]:
    """``count`` mutants, or all there are, in turn from each room: the same for the same source and ``seed``."""
    chance, queues = random.Random(seed), population(rooms)
    for queue in queues.values():
        chance.shuffle(queue)
    taken: list[Mutant] = []
    while len(taken) < count and any(queues.values()):
        taken += [queue.pop() for queue in queues.values() if queue]
    return sorted(taken[:count], key=lambda mutant: (room_of(mutant.file), mutant.file, mutant.start, mutant.after))
