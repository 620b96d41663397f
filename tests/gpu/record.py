"""The document that a measurement fills row by row, on disk as soon as a row is known."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from tests.gpu.machine import source
from tests.gpu.standin import STANDIN
from tieconv.version import VERSION

SCHEMA = "tieconv.gpu/1"
PARTS = (
    "verdicts", "faults", "device_faults", "refusals", "exports", "on_device", "seven_billion", "memory", "latency",
    "serving",
)  # fmt: skip
PLACEMENT = "placement"
"""A part of its own where nothing can be computed; else a verdict has it."""
Row = dict[str, Any]


class OtherMeasurementError(Exception):
    """The file holds another provider's, machine's or program's measurement."""


class Record:
    """Rows by part and key. A run that is killed keeps what it had, and the next one goes on with what is left."""

    def __init__(self, path: Path, provider: str, machine: dict[str, Any], *, small: bool) -> None:
        self.path = path
        self.source = source()
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self.document: dict[str, Any] = {
            "schema": SCHEMA,
            "tieconv": VERSION,
            "provider": provider,
            "rehearsal": provider != "cuda" or small,
            "small": small,
            "date": now.date().isoformat(),
            "machine": machine,
            "seconds": 0.0,
            "left": [],
            "parts": {part: [] for part in (*PARTS, *((PLACEMENT,) if provider == STANDIN else ()))},
        }
        if path.exists():
            self._resume(json.loads(path.read_text(encoding="utf-8")))

    def _resume(self, before: dict[str, Any]) -> None:
        for key in ("schema", "tieconv", "provider", "small", "machine"):
            if before.get(key) != self.document[key]:
                raise OtherMeasurementError(
                    f"{self.path} holds another measurement ({key}: {before.get(key)} instead of "
                    f"{self.document[key]}): give another -o"
                )
        self.document |= {key: before[key] for key in ("date", "seconds")}
        self.document["parts"] |= before["parts"]

    def done(self, part: str, key: str) -> bool:
        """Whether the row is there and was measured; one with an error is measured again."""
        return any(row["key"] == key and "error" not in row for row in self.document["parts"][part])

    def add(self, part: str, row: Row) -> None:
        """``row`` with the code that it was measured with, in the place of one with its key."""
        row = {**row, "source": self.source}
        rows = self.document["parts"][part]
        rows[:] = [other for other in rows if other["key"] != row["key"]] + [row]
        self.write()

    def finish(self, seconds: float, left: list[str], order: dict[str, list[str]]) -> None:
        """The time that was taken, what was left out, and the rows in ``order``."""
        self.document["seconds"] = round(self.document["seconds"] + seconds, 1)
        self.document["left"] = left
        for part, keys in order.items():
            places = {key: place for place, key in enumerate(keys)}
            self.document["parts"][part].sort(key=lambda row: places.get(row["key"], len(places)))
        self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.path.with_name(self.path.name + ".new")
        staged.write_text(json.dumps(self.document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(staged, self.path)
