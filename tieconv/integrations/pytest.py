"""Assert in a test that the ties of a model are right.

```python
def test_ties(tied_model_check):
    model = build()
    tied_model_check(model)
    train(model)
    tied_model_check(model)
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch.nn import Module


def assert_ties(model: Module) -> None:
    """Raise `AssertionError` if the config of a model, its parameters and its next save disagree about ties."""
    from tieconv.live.watched_ties import TieWatch

    _assert_none(TieWatch(model).faults())


@pytest.fixture
def tied_model_check() -> Callable[[Module], None]:
    """Return a function that asserts the ties of a model. A second call with it also asserts that no tie was lost."""
    from tieconv.live.watched_ties import TieWatch

    watches: dict[int, TieWatch] = {}

    def check(model: Module) -> None:
        _assert_none(watches.setdefault(id(model), TieWatch(model)).faults())

    return check


def _assert_none(faults: tuple[Any, ...]) -> None:
    lines = [f"{fault}\nhint: {fault.hint}" for fault in faults]
    if lines:
        raise AssertionError("\n".join(lines))
