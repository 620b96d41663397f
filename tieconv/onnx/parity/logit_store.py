"""Keep logits on disk between the passes, so that only one model is in memory at a time."""

from __future__ import annotations

import os
from contextlib import ExitStack
from types import TracebackType

import torch

from tieconv.sources.temporary import temporary_directory


class LogitStore:
    """Tensors by key in a temporary directory that is removed at the end."""

    def __init__(self) -> None:
        self._holder = ExitStack()
        self._directory = self._holder.enter_context(temporary_directory())
        self._count = 0
        self._paths: dict[object, str] = {}

    def put(self, key: object, logits: torch.Tensor) -> None:
        self._paths[key] = os.path.join(self._directory, f"{self._count}.pt")
        self._count += 1
        torch.save(logits.contiguous().clone(), self._paths[key])

    def get(self, key: object) -> torch.Tensor | None:
        """Return the tensor, mapped from its file, or ``None`` if the key is unknown."""
        path = self._paths.get(key)
        if path is None:
            return None
        tensor: torch.Tensor = torch.load(path, weights_only=True, mmap=True)
        return tensor

    def __enter__(self) -> LogitStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.close()
