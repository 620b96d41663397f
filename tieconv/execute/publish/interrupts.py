"""Handle signals during a write: they end it cleanly, and never in the middle of the last step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_CAUGHT = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """Turn SIGINT into `KeyboardInterrupt`, SIGTERM and SIGHUP into `SystemExit` (128 + number)."""

    def __init__(self) -> None:
        self._shields = 0
        self._pending: int | None = None
        self._raised = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._raised:
            return  # cleanup after the first signal is running
        if self._shields:
            self._pending = self._pending or number
        else:
            self._raise(number)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Delay signals to the end of the outermost block, unless that block fails by itself."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if not self._shields and self._pending is not None:
            number, self._pending = self._pending, None
            self._raise(number)

    def _raise(self, number: int) -> NoReturn:
        self._raised = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Install the handlers for the block and restore the old ones after it; outside the main thread install none."""
    handler = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    numbers = [getattr(signal, name) for name in _CAUGHT if hasattr(signal, name)]
    # None is a handler that C code installed and Python cannot restore; SIG_IGN is what nohup sets.
    caught = [number for number in numbers if signal.getsignal(number) not in (None, signal.SIG_IGN)]
    before = {number: signal.signal(number, handler.handle) for number in caught}
    if signal.getsignal(signal.SIGXFSZ) is not None:
        before[signal.SIGXFSZ] = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)
