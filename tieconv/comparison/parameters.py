"""Map the parameters of a model, under names that two models share, to their stored tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Inspection


@dataclass(frozen=True, slots=True)
class Source:
    """The stored tensor of a parameter, and the ``scale`` by which the forward pass multiplies it."""

    record: TensorRecord
    scale: float = 1.0


class ParameterNames:
    """Map names in the file to parameter names, without the base model's prefix and with renames undone.

    The object stores nothing for each tensor, because a model may have hundreds of thousands.
    """

    def __init__(self, inspection: Inspection) -> None:
        family = inspection.family
        self.tensors = inspection.checkpoint.tensors
        self._stored = {memory: stored for stored, memory in family.renames}
        self._memory: dict[str, list[str]] = {}
        for memory, stored in self._stored.items():
            self._memory.setdefault(stored, []).append(memory)
        self._prefix = f"{family.prefix}." if family.prefix else ""
        self._changes = bool(self._stored or self._prefix)
        # Where two stored names would become one, every parameter keeps its name in the file.
        self._changes = self._changes and all(self._is_alone(name) for name in self.tensors)

    def of(self, name: str) -> str:
        """Return the parameter name of a name in the file."""
        return self._short(name) if self._changes else name

    def stored(self, parameter: str) -> TensorRecord | None:
        """Return the tensor that the file stores for a parameter, or ``None``."""
        if not self._changes:
            return self.tensors.get(parameter)
        if not self._stored:  # the prefix alone: most models, and asked for each tensor
            record = self.tensors.get(self._prefix + parameter)
            if record is None and not parameter.startswith(self._prefix):
                record = self.tensors.get(parameter)
            return record
        return next((self.tensors[name] for name in self._spelled(parameter)), None)

    def __iter__(self) -> Iterator[str]:
        return map(self.of, self.tensors)

    def _short(self, name: str) -> str:
        return self._stored.get(name, name).removeprefix(self._prefix)

    def _spelled(self, parameter: str) -> Iterator[str]:
        """Yield the stored names that become ``parameter``."""
        for known in (self._prefix + parameter, parameter) if self._prefix else (parameter,):
            for name in (known, *self._memory.get(known, ())):
                if name in self.tensors and self._short(name) == parameter:
                    yield name

    def _is_alone(self, name: str) -> bool:
        return all(spelling == name for spelling in self._spelled(self._short(name)))


class Sources:
    """Map parameter names to the sources in one loader: the stored tensor, or the source that was set."""

    def __init__(self, names: ParameterNames, unread: frozenset[str]) -> None:
        self.names = names
        self.changed: dict[str, Source | None] = {}
        self._unread = unread

    def get(self, parameter: str) -> Source | None:
        """Return the source of the values, or ``None`` if the loader has none."""
        if parameter in self.changed:
            return self.changed[parameter]
        record = self.names.stored(parameter)
        return None if record is None or record.name in self._unread else Source(record)

    def __setitem__(self, parameter: str, source: Source) -> None:
        self.changed[parameter] = source

    def drop(self, parameter: str) -> None:
        """Leave the parameter without values."""
        self.changed[parameter] = None


def parameters(a: Sources, b: Sources, further: list[Sources]) -> Iterator[str]:
    """Yield each parameter name of two models once: as stored in A, then in B, then set for a loader."""
    yield from a.names
    yield from (name for name in b.names if a.names.stored(name) is None)
    changed = {name for sources in (a, b, *further) for name in sources.changed}
    yield from sorted(name for name in changed if a.names.stored(name) is None and b.names.stored(name) is None)
