"""Report network traffic on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tieconv.api import is_remote
from tieconv.text import count, size

if TYPE_CHECKING:
    from tieconv.api import Fetched


def fetched_line(fetched: Fetched) -> str:
    """Return a line such as ``fetched 128 kB in 6 requests``."""
    return f"fetched {size(fetched.bytes)} in {count(fetched.requests, 'request')}"


@contextmanager
def headers_bar(model: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar of the headers that are fetched, for a remote model and on a terminal."""
    if not is_remote(model) or not sys.stderr.isatty():
        yield None
        return
    from tieconv.cli.progress import count_progress  # on a terminal, for a remote model

    with count_progress("headers") as tick:
        yield tick
