"""Run one execution in a process of its own: ``python -m execute.driver KIND SOURCE OUT [OPTION...]``.

KIND is a function of `models` that makes a plan; options are ``overwrite``, ``in_place``, ``hardlink``, and
``wait`` (print a line, then wait in the middle of the write for one on stdin).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tieconv.errors import TieconvError
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target

from . import models


def _inspect_after_wait(path: Path) -> Any:
    print("written", flush=True)
    sys.stdin.readline()
    return models.inspect(path)


def main() -> int:
    kind, source, out, *options = sys.argv[1:]
    plan = getattr(models, kind)(Path(source))
    flags: dict[str, Any] = {option: True for option in options if option != "wait"}
    try:
        execute(
            plan, Target(Path(out), **flags), reinspect=_inspect_after_wait if "wait" in options else models.inspect
        )
    except TieconvError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
