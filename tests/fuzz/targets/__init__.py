"""The targets: each makes a damaged model from a random generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module

from tests.fuzz.case import Case

KEPT_FILES = ("runs", "settings", "resume")
"""Targets of files that a run keeps, or that people hand in."""
SERVED = ("hub", "listing")
"""Targets of what servers answer. Each runs in a process of its own: the Hub's endpoint is read once."""
TARGETS = (
    "safetensors", "zip", "pickle", "gguf", "onnx", "index", "config", "names", "peft", "dcp", *SERVED, *KEPT_FILES
)  # fmt: skip


def maker(target: str) -> Callable[[random.Random], Case]:
    """Return the function that makes a case of ``target``."""
    make: Callable[[random.Random], Case] = import_module(f"tests.fuzz.targets.{target}_target").make
    return make
