"""Define what a user wants to be measured, and check that the model can run it."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, RefusedError
from tieconv.onnx.parity.free_memory import available_memory, reference_bytes
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.text import size


@record
class Wishes:
    """More batches: the arrays of the file ``inputs``, a sequence of ``length`` tokens, and ``batch`` rows."""

    inputs: str = ""
    length: int = 0
    batch: int = 0


def check_length(subject: Subject, length: int, longest: int) -> None:
    """Check a sequence of ``length`` tokens.

    Raises `RefusedError` if the model has fewer positions, and `NotRunError` if the memory is too small.
    """
    if length > longest:
        raise RefusedError(
            f"--length {length} is more than the {longest} positions of the model",
            f"--length {longest}",
            "parity.length",
        )
    wanted, room = reference_bytes(subject, length), available_memory()
    if length and wanted > room:
        raise NotRunError(
            f"a sequence of {length} tokens needs {size(wanted)} of memory, but only {size(room)} is free",
            "give a shorter --length, or use a machine with more memory",
            "parity.memory",
        )
