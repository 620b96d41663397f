"""The gate's answer in every format that `tieconv check --format` offers.

`python -m tieconv.reporters.ci.formats FORMAT < report.json` turns a stored JSON report into another format: a CI job
reads the weights once and still gets annotations, a summary and SARIF.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from tieconv.checkpoint.results.checked import CheckReport
from tieconv.reporters.text.columns import Paint, plain

FORMATS = ("text", "json", "jsonl", "sarif", "github", "junit", "markdown")
"""Each format, in the module `check_` and its name: naming them imports none."""


def render(format_: str, report: CheckReport, paint: Paint = plain, width: int | None = None) -> str:
    """``report`` in ``format_``, without a newline at the end; only text is coloured and wrapped.

    ``ValueError`` for a format that is not in `FORMATS`.
    """
    if format_ not in FORMATS:
        raise ValueError(f"no such format: {format_}")
    if format_ == "text":
        from tieconv.reporters.ci.check_text import render as text

        return text(report, paint, width)
    module = importlib.import_module(f"tieconv.reporters.ci.check_{format_}")
    rendered: Callable[[CheckReport], str] = module.render
    return rendered(report)


def main(arguments: list[str]) -> int:
    """Stdin, a `tieconv.check/1` document, to stdout in the format that is named."""
    from tieconv.reporters.ci.check_json import read

    if len(arguments) != 1 or arguments[0] not in FORMATS:
        sys.stderr.write(f"usage: python -m tieconv.reporters.ci.formats {'|'.join(FORMATS)} < report.json\n")
        return 2
    try:
        report = read(sys.stdin.buffer.read())
    except ValueError as error:
        sys.stderr.write(f"error: stdin is no report of tieconv check: {error}\n")
        sys.stderr.write("hint: store one with: tieconv check MODEL --format json > report.json\n")
        return 2
    sys.stdout.write(render(arguments[0], report) + "\n")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:]))
