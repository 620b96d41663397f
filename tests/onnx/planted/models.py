"""Models that faults are planted in, besides those of the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tr

from tests.onnx.exported import _SIZES

MORE: dict[str, Callable[[], Any]] = {
    "mistral-48": lambda: tr.MistralForCausalLM(tr.MistralConfig(**_SIZES, sliding_window=48))
}
