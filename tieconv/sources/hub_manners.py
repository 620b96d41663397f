"""How huggingface_hub behaves while it transfers files for us: what it shows, and how long it waits."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    get_session,
    logging,
)

from tieconv.sources.hub_errors import LONGEST_WAIT, rate_limited, retry_after


@contextmanager
def transferring(what: str) -> Iterator[None]:
    """Within it progress bars on a terminal only, no log of its own, and no wait that the user is not told of.

    Its log repeats addresses, which are signed: who has one may read or write the file. Raises `UnreadableError`
    about ``what`` where a server asks for a longer wait than `LONGEST_WAIT`.
    """
    level, hide = logging.get_verbosity(), not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), _patience(what):
            warnings.filterwarnings("ignore", category=UserWarning, module="huggingface_hub")
            yield
    finally:
        logging.set_verbosity(level)
        if hide:
            enable_progress_bars()


@contextmanager
def _patience(what: str) -> Iterator[None]:
    """Within it an answer that asks for too long a wait ends the transfer; huggingface_hub would sit it out."""
    hooks: list[Callable[..., Any]] = get_session().event_hooks["response"]

    def check(response: Any) -> None:
        wait = retry_after(response)
        if response.status_code in (429, 503) and (wait or 0) > LONGEST_WAIT:
            raise rate_limited(what, wait)

    hooks.append(check)
    try:
        yield
    finally:
        hooks.remove(check)
