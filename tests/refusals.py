"""What a call that must fail raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def failure_of(call: Callable[..., object], kind: type[Exception], *words: Any, **options: Any) -> Any:
    """Return the error of a call, which must be of this kind."""
    with pytest.raises(kind) as caught:
        call(*words, **options)
    return caught.value
