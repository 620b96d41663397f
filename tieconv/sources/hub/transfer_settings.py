"""Control what huggingface_hub shows and may do while it transfers files for tieconv."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    logging,
)

from tieconv.sources.hub.session import LARGEST_ANSWER, limits


@contextmanager
def transferring(largest: int = LARGEST_ANSWER, hashes: Mapping[str, str] | None = None) -> Iterator[None]:
    """Transfer with `session.limits`, with progress bars only on a terminal, and without huggingface_hub's log.

    The log would show signed URLs. With such a URL anybody could read or write the file.
    """
    level, hide = logging.get_verbosity(), not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), limits(largest, hashes):
            warnings.filterwarnings("ignore", category=UserWarning, module="huggingface_hub")
            yield
    finally:
        logging.set_verbosity(level)
        if hide:
            enable_progress_bars()
