"""Rows measured in a process of their own, printed one a line as they are known.

python -m tests.gpu.job '{"provider": "cpu", "work": "DIR", "small": true, "rows": [["verdicts", "llama", "fp32"]]}'
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "row "
"""What a line with a row begins with; anything else on stdout is a library's."""
Spec = tuple[str, ...]
"""The part, then what it is about: ("verdicts", "llama", "fp32")."""
FORMS_PART = "forms"
"""No part of the document: the large model's graphs are made, so that others find them."""
ROWS_EACH = ("latency", "serving")
"""Parts whose specs make a row for each form and length."""
_MAKERS = {
    "verdicts": ("tests.gpu.verdicts", "verdict_row"),
    "faults": ("tests.gpu.verdicts", "fault_row"),
    "placement": ("tests.gpu.verdicts", "placement_row"),
    "device_faults": ("tests.gpu.device_faults", "device_fault_row"),
    "exports": ("tests.gpu.refusals", "export_row"),
    "serving": ("tests.gpu.serving", "serving_rows"),
    "refusals": ("tests.gpu.refusals", "refusal_row"),
    "memory": ("tests.gpu.memory", "memory_row"),
    "on_device": ("tests.gpu.seven_billion", "on_device_row"),
    "seven_billion": ("tests.gpu.seven_billion", "seven_row"),
    "latency": ("tests.gpu.latency", "latency_rows"),
}


def key_of(spec: Spec) -> str:
    return "/".join(spec[1:])


def rows(spec: Spec, workshop: Any, provider: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of one spec with their keys; what fails is a row with the error."""
    from tieconv.errors import NotRunError, TieconvError

    module, name = _MAKERS[spec[0]]

    def without_place(text: str) -> str:
        return text.replace(str(workshop.directory), "WORK")

    try:
        found = getattr(importlib.import_module(module), name)(workshop, provider, *spec[1:])
        if spec[0] in ROWS_EACH:
            yield from ((f"{spec[1]}/{row['form']}/{row['sequence']}", row) for row in found)
        else:
            text = {name: without_place(value) for name, value in found.items() if isinstance(value, str)}
            yield key_of(spec), found | text
    except NotRunError as stop:
        yield (
            key_of(spec),
            {"verdict": "not_run", "reason": without_place(stop.message), "hint": stop.hint, "about": list(spec[1:])},
        )
    except TieconvError as error:
        yield key_of(spec), {"error": without_place(error.message), "hint": error.hint, "about": list(spec[1:])}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        yield (
            key_of(spec),
            {"error": without_place(f"{type(error).__name__}: {error}"[:600]), "where": where, "about": list(spec[1:])},
        )


def main(document: str) -> None:
    from tests.gpu.models import Workshop

    given = json.loads(document)
    workshop = Workshop(Path(given["work"]), small=given["small"])
    for spec in given["rows"]:
        if spec[0] == FORMS_PART:
            with contextlib.redirect_stdout(io.StringIO()):
                workshop.forms(spec[1])
            continue
        start = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            found = rows(tuple(spec), workshop, given["provider"])
            made = next(found, None)
        while made is not None:
            key, row = made
            told = {"part": spec[0], "row": {"key": key, **row, "seconds": round(time.monotonic() - start, 1)}}
            print(MARK + json.dumps(told, allow_nan=False), flush=True)
            with contextlib.redirect_stdout(io.StringIO()):
                made = next(found, None)


if __name__ == "__main__":
    main(sys.argv[1])
