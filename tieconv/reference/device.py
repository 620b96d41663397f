"""Run the torch reference on a GPU: find it, its free memory, and products without a loss of precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tieconv.errors import NotRunError
from tieconv.reference.packages import need

CPU = "cpu"


def torch_device(name: str, number: int) -> str:
    """Return torch's name for ``cpu``, or for ``cuda`` and the number of a GPU. Raises `NotRunError` without it."""
    if name == CPU:
        return CPU
    torch = need("torch", "onnx", "the torch reference")
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if visible <= number:
        why = f"finds {visible} GPUs" if torch.version.cuda else "is a CPU build"
        raise NotRunError(
            f"the reference cannot run on GPU {number}: torch {torch.__version__} {why}",
            "run the reference on the CPU: --reference-device cpu",
            "parity.reference-device",
        )
    return f"cuda:{number}"


def free_memory(device: str) -> int:
    """Return the free bytes of a GPU."""
    torch = need("torch", "onnx", "the torch reference")
    return int(torch.cuda.mem_get_info(device)[0])


def moved(value: Any, device: str) -> Any:
    """Return a tensor on ``device``, and any other value as it is."""
    return value.to(device) if hasattr(value, "to") and hasattr(value, "device") else value


@contextmanager
def memory_of(device: str) -> Iterator[None]:
    """Raise `NotRunError` if torch reports that the memory of ``device`` ran out."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        raise NotRunError(
            f"the memory of {device} ran out in the torch reference",
            "use --reference float32, or run the reference on the CPU: --reference-device cpu",
            "parity.memory",
        ) from error


@contextmanager
def exact_products(device: str) -> Iterator[None]:
    """Keep torch from TF32, and from sums in 16 bits, for which the floor would be too large."""
    if device == CPU:
        yield
        return
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [(matmul, name, getattr(matmul, name)) for name in names] + [(cudnn, "allow_tf32", cudnn.allow_tf32)]
    try:
        for owner, name, _ in before:
            setattr(owner, name, False)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
