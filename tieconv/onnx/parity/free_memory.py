"""Choose the precision of the torch reference by the free memory."""

from __future__ import annotations

import os

from tieconv.errors import NotRunError
from tieconv.onnx.parity.batches.batch_shapes import BEYOND, LONG
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.reference.model import CPU, free_memory
from tieconv.text import size

WIDEST = 4096
"""The largest sliding window that is measured, in tokens."""
_SHARE = 0.8
"""The share of the free memory that the reference may use."""


def reference_dtype(subject: Subject, asked: str) -> str:
    """Return float64 if it fits into memory, else float32. float32 cannot judge a float32 graph."""
    wanted = reference_bytes(subject, LONG)
    room = _room(subject)
    dtype = asked if asked != "auto" else "float64" if wanted < _SHARE * room else "float32"
    if dtype == "float32" and subject.precision in ("float32", "float64"):
        raise NotRunError(
            f"a {subject.precision} graph needs a float64 reference with {size(wanted)} of memory"
            + (f", but only {size(room)} is free" if asked == "auto" else ""),
            "use a machine with more memory, or measure the fp16 or bf16 export",
            "parity.memory",
        )
    return dtype


def planned_window(subject: Subject) -> tuple[int, str]:
    """Return the sliding window to measure, and a note if the window of the config is not measured."""
    window = subject.window
    if window > WIDEST:
        return 0, f"parity measures windows of up to {WIDEST} tokens: the window of {window} tokens was not measured"
    wanted, room = reference_bytes(subject, window + BEYOND), _room(subject)
    if window and wanted > _SHARE * room:
        note = f"the window of {window} tokens was not measured: a longer sequence needs {size(wanted)} of memory"
        return 0, f"{note}, but only {size(room)} is free"
    return window, ""


def _room(subject: Subject) -> int:
    """Return the memory for the reference. transformers loads it into main memory first."""
    room = available_memory()
    return room if subject.torch_device == CPU else min(room, free_memory(subject.torch_device))


def reference_bytes(subject: Subject, length: int) -> int:
    """Return the memory of a float64 reference, with the logits and attention scores of ``length`` tokens."""
    heads = int(getattr(subject.config, "num_attention_heads", 0) or 1)
    rows = int(getattr(subject.config, "vocab_size", 0) or 0)
    return 8 * (subject.elements + length * rows + 2 * heads * length * length)


def available_memory() -> int:
    """Return the bytes of memory that programs can still use."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
