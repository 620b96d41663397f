"""Run `record` or `compare` from the command line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.recorded.compare import KNOWN, Allowed, compare, report, without_sentences
from tests.recorded.models import build, record


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description="Record answers and compare them.")
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="write what every command answers about every model")
    recording.add_argument("output", type=Path, metavar="OUT.json")
    recording.add_argument("--models", type=Path, required=True, metavar="DIR", help="built once, then read again")
    recording.add_argument("-j", "--jobs", type=int, default=2, metavar="N", help="processes; default 2")
    recording.set_defaults(run=_record)
    comparing = commands.add_parser("compare", help="print what differs; exit 1 when anything does")
    comparing.add_argument("before", type=Path, metavar="BEFORE.json")
    comparing.add_argument("after", type=Path, metavar="AFTER.json")
    comparing.add_argument("--allow", type=Path, default=KNOWN, metavar="FILE", help="known differences with reasons")
    comparing.add_argument("--without-sentences", action="store_true", help="compare no messages, notes and screens")
    for command in (recording, comparing):
        command.add_argument("--only", metavar="TEXT", default="", help="only models whose name contains TEXT")
    comparing.set_defaults(run=_compare)
    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


def _record(options: argparse.Namespace) -> int:
    started = time.monotonic()
    models = build(options.models, options.jobs)
    built = time.monotonic()
    chosen = {name: model for name, model in models.items() if options.only in name}
    recording = record(options.models, chosen, options.jobs)
    options.output.write_text(json.dumps(recording, sort_keys=True) + "\n", encoding="utf-8")
    answers = sum(len(one["answers"]) for one in recording["models"].values())
    ended = time.monotonic()
    print(f"{len(chosen)} models, {answers} answers, {len(recording['answers'])} of them different")
    print(f"models: {built - started:.0f} s, answers: {ended - built:.0f} s")
    return 0


def _compare(options: argparse.Namespace) -> int:
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (options.before, options.after))
    for recording in (before, after):
        recording["models"] = {name: one for name, one in recording["models"].items() if options.only in name}
    if options.without_sentences:
        before, after = without_sentences(before), without_sentences(after)
    return report(compare(before, after), Allowed.read(options.allow))


if __name__ == "__main__":
    sys.exit(main())
