"""Watch the ties of a model in a training loop.

```python
from tieconv.integrations.torch import watch_ties

with watch_ties(model) as watch:
    train(model)
    model.save_pretrained("out")
    watch.check_saved("out")
```
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from tieconv.errors import TieconvError
from tieconv.live.watched_ties import TieFault, TieWatch

if TYPE_CHECKING:
    from torch.nn import Module

OnFault = Literal["warn", "raise"]


class BrokenTieError(TieconvError):
    """Tied weights of a model in memory are broken, or were saved wrongly. ``faults`` are all of them."""

    def __init__(self, faults: Sequence[TieFault], when: str) -> None:
        self.faults = tuple(faults)
        message = " ".join(map(str, self.faults))
        super().__init__(f"{when}: {message}", self.faults[0].hint, self.faults[0].rule or "live.tie")


class BrokenTieWarning(UserWarning):
    """Tied weights of a model in memory are broken, or were saved wrongly."""


class Watch:
    """Checks of one model, which warn or raise. `watch_ties` returns one."""

    def __init__(self, model: Module, on_fault: OnFault = "raise") -> None:
        if on_fault not in ("warn", "raise"):
            raise ValueError(f"on_fault is {on_fault!r}, but must be 'warn' or 'raise'")
        self._ties = TieWatch(model)
        self._on_fault = on_fault
        self._reported: set[str] = set()

    def check(self, when: str = "now") -> None:
        """Check the model in memory: the ties of the start, the config, and what `save_pretrained` would write."""
        self._report(self._ties.faults(), when)

    def check_ties(self, when: str = "now") -> None:
        """Check only that what was one parameter at the start still is. Reads no values of a healthy model."""
        self._report(tuple(self._ties.lost()), when)

    def check_saved(self, directory: str | os.PathLike[str], when: str = "saved") -> None:
        """Check the files in ``directory``, and that they have every separate parameter of the model in memory.

        Raises `UnreadableError` if the directory holds no model that tieconv can read.
        """
        self._report(self._ties.saved_faults(directory), when)

    def _report(self, faults: Sequence[TieFault], when: str) -> None:
        fresh = [fault for fault in faults if str(fault) not in self._reported]
        if not fresh:
            return
        if self._on_fault == "raise":
            raise BrokenTieError(fresh, when)
        self._reported |= set(map(str, fresh))
        for fault in fresh:
            warnings.warn(f"{when}: {fault}\nhint: {fault.hint}", BrokenTieWarning, stacklevel=3)


@contextmanager
def watch_ties(model: Module, *, on_fault: OnFault = "raise") -> Iterator[Watch]:
    """Check the ties of ``model`` at the start and at the end of the block. In between it costs nothing.

    Yields a `Watch`, whose methods check at other times. With ``on_fault="warn"`` a fault is a `BrokenTieWarning`,
    otherwise it raises `BrokenTieError`. If the block raises, nothing is checked at its end.
    """
    watch = Watch(model, on_fault)
    watch.check("at the start")
    yield watch
    watch.check("at the end")
