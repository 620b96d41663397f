"""Call fsync in a separate thread, while the main thread copies the next file and verifies the last one."""

from __future__ import annotations

import os
import queue
import threading

_QUEUED = 64
"""Files that may wait in the queue: each holds a descriptor."""
EARLY = 128 * 1024 * 1024
"""Bytes of a file after which a first sync starts, so that the disk works while the copy goes on."""


class Syncer:
    """Sync each file that it receives; `finish` reports the first failure."""

    def __init__(self) -> None:
        self._queue: queue.Queue[int | None] = queue.Queue(_QUEUED)
        self._error: OSError | None = None
        self._stopped = False
        self._idle = True
        self._thread = threading.Thread(target=self._work, name="tieconv-sync", daemon=True)
        self._thread.start()

    def add(self, descriptor: int) -> None:
        """Sync the open file soon; the caller may close its descriptor."""
        self._queue.put(os.dup(descriptor))

    def nudge(self, descriptor: int) -> None:
        """Start a sync of the bytes written so far, unless one is running. The file still needs `add`."""
        if self._idle and self._queue.empty():
            self.add(descriptor)

    def finish(self) -> None:
        """Wait until every file is durable. Raises the first `OSError`."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Drop the files that are not synced yet."""
        self._stopped = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (descriptor := self._queue.get()) is not None:
            self._idle = False
            try:
                if not (self._stopped or self._error):
                    os.fsync(descriptor)
            except OSError as error:
                self._error = error
            finally:
                os.close(descriptor)
                self._idle = True
