"""Print measured rows, and with ``--write`` put them into a JSON document of the docs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def measure_rows(
    file: Path, measure: Callable[[Path], Iterable[Row]], order: Callable[[Row], Any] | None = None
) -> None:
    """Run ``measure`` in the folder that the command line gives, or in a temporary one.

    With ``order``, rows that were not measured now stay in ``file``. A row replaces the one of the same place.
    """
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    with tempfile.TemporaryDirectory() as scratch:
        rows = list(_printed(measure(Path(words[0] if words else scratch))))
    if "--write" not in sys.argv:
        return
    if order is not None:
        before = json.loads(file.read_text(encoding="utf-8"))["rows"]
        merged = {order(row): row for row in (*before, *rows)}
        rows = [merged[place] for place in sorted(merged)]
    file.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


def _printed(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        print(json.dumps(row), flush=True)
        yield row
