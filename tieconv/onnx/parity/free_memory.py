"""Choose the precision of the torch reference by the free memory."""

from __future__ import annotations

import os

from tieconv.errors import NotRunError
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.text import size


def reference_dtype(subject: Subject, asked: str) -> str:
    """Return float64 if it fits into memory, else float32. float32 cannot judge a float32 graph."""
    wanted = 8 * sum(record.elements for record in subject.evidence.checkpoint.tensors.values())
    room = available_memory()
    dtype = asked if asked != "auto" else "float64" if wanted < 0.8 * room else "float32"
    if dtype == "float32" and subject.precision in ("float32", "float64"):
        raise NotRunError(
            f"a {subject.precision} graph needs a float64 reference with {size(wanted)} of memory"
            + (f", but only {size(room)} is free" if asked == "auto" else ""),
            "use a machine with more memory, or measure the fp16 or bf16 export",
            "parity.memory",
        )
    return dtype


def available_memory() -> int:
    """Return the bytes of memory that programs can still use."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
