"""The report of `tieconv check` in every format that `--format` offers.

`python -m tieconv.reporters.ci.formats FORMAT < report.json` converts a stored JSON report to another format. So a CI
job reads the weights once and still gets annotations, a summary and SARIF.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace

from tieconv.checkpoint.results.checked import CheckReport
from tieconv.reporters.text import Paint, plain

FORMATS = ("text", "json", "jsonl", "sarif", "github", "junit", "markdown")
"""The formats. Each but ``jsonl`` has a module named `check_` and the format; this list imports none of them."""


def render(format_: str, report: CheckReport, paint: Paint = plain, width: int | None = None) -> str:
    """Return ``report`` in ``format_``, without a newline at the end. Only text is coloured and wrapped.

    Raises ``ValueError`` for a format that is not in `FORMATS`.
    """
    if format_ not in FORMATS:
        raise ValueError(f"unknown format: {format_}")
    if format_ == "text":
        from tieconv.reporters.ci.check_text import render as text

        return text(report, paint, width)
    if format_ == "jsonl":  # each line is a document with one model, escaped as `check_json` says
        documents = (replace(report, models=(model,)).to_dict() for model in report.models)
        return "\n".join(map(json.dumps, documents)).replace("##", "#\\u0023")
    module = importlib.import_module(f"tieconv.reporters.ci.check_{format_}")
    rendered: Callable[[CheckReport], str] = module.render
    return rendered(report)


def main(arguments: list[str]) -> int:
    """Convert stdin, a `tieconv.check/1` document, to the named format on stdout. Returns the exit code."""
    from tieconv.reporters.ci.check_json import read

    if len(arguments) != 1 or arguments[0] not in FORMATS:
        sys.stderr.write(f"usage: python -m tieconv.reporters.ci.formats {'|'.join(FORMATS)} < report.json\n")
        return 2
    try:
        report = read(sys.stdin.buffer.read())
    except ValueError as error:
        sys.stderr.write(f"error: stdin is not a report of tieconv check: {error}\n")
        sys.stderr.write("hint: store one with: tieconv check MODEL --format json > report.json\n")
        return 2
    sys.stdout.write(render(arguments[0], report) + "\n")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:]))
