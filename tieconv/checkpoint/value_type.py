"""Frozen dataclasses that are cheap to define.

`dataclasses.dataclass(frozen=True, slots=True)` compiles six methods for each class at every start of the program. That
takes some 0.4 ms a class; thirty classes cost more than importing Click. For every function of that module (`fields`,
`replace`, `asdict`) and for a type checker, a `record` is a dataclass. Its classes share their methods. Making an
instance takes about 2 µs instead of 0.6. A class with half a million instances therefore has its own `__init__`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, dataclass_transform

from tieconv.text import shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T")


class Choice(StrEnum):
    """The values of an argument. Another value raises `ValueError`, which lists them."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        *_, argument = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Choice"))  # BiasSurvivor: survivor
        raise ValueError(f"{argument.lower()} {value!r} is not one of {', '.join(cls)}")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise `ValueError`, which lists the choices of the argument ``name``, if ``value`` is none of them."""
    if value not in choices:
        raise ValueError(f"{name} {value!r} is not one of {', '.join(choices)}")


def strings(name: str, value: object) -> tuple[str, ...]:
    """Return the argument ``name``, a string or several. Raises `TypeError` for a value of another type."""
    several = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for each in several:
        if not isinstance(each, str):
            raise TypeError(f"{name} is a string or a list of strings, and holds {each!r}")
    return several


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """Return the class as a frozen, slotted dataclass."""
    own = cls.__dict__.keys() & _METHODS.keys()
    if cls.__repr__ is not object.__repr__:  # a base class chose another
        own |= {"__repr__"}
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__dataclass_fields__ = {field.name: field for field in dataclasses.fields(made)}  # type: ignore[attr-defined, arg-type]  # no ClassVar
    for name, method in _METHODS.items():
        if name not in own:
            setattr(made, name, method)
    if hasattr(made, "__post_init__"):
        made.__init__ = _init_checked  # type: ignore[method-assign]
    return made


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(dataclasses.field,))
def identity_record(cls: type[T]) -> type[T]:
    """Return the class as a `record` that is compared by identity: arrays and sessions have no useful equality."""
    cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]
    return record(cls)


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    fields: dict[str, dataclasses.Field[Any]] = self.__dataclass_fields__
    if len(args) == len(fields) and not kwargs:
        for name, value in zip(fields, args, strict=True):
            object.__setattr__(self, name, value)
        return
    if len(args) > len(fields):
        raise TypeError(f"{type(self).__name__} takes {len(fields)} values but {len(args)} were given")
    values = dict(zip(fields, args, strict=False))
    for name, value in kwargs.items():
        if name not in fields or name in values:
            raise TypeError(f"{type(self).__name__} got an unexpected or repeated value {name!r}")
        values[name] = value
    for name, definition in fields.items():
        object.__setattr__(self, name, values[name] if name in values else _default(self, definition))


def _init_checked(self: Any, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    self.__post_init__()


def _default(self: Any, definition: dataclasses.Field[Any]) -> Any:
    if definition.default is not dataclasses.MISSING:
        return definition.default
    if definition.default_factory is not dataclasses.MISSING:
        return definition.default_factory()
    raise TypeError(f"{type(self).__name__} lacks a value for {definition.name!r}")


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self.__dataclass_fields__)


def _repr(self: Any) -> str:
    pairs = (f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
    return f"{type(self).__qualname__}({', '.join(pairs)})"


def _eq(self: Any, other: object) -> bool:
    if self is other:
        return True
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _setattr(self: Any, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), _values(self)


_METHODS = {
    f"__{method.__name__.strip('_')}__": method for method in (_init, _repr, _eq, _hash, _setattr, _delattr, _reduce)
}


# Convert values to JSON; records that print as their JSON document and have a one-line ``repr``.

_SOURCE = 60


def plain(value: object) -> object:
    """Return a JSON-ready value: a record by its `to_dict` or its fields, a tuple as a list.

    A number that JSON lacks (infinite, NaN) becomes text.
    """
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if isinstance(value, str):
        return str(value)  # the value of an enum
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return fields_of(value) if dataclasses.is_dataclass(value) else value


def fields_of(value: Any) -> dict[str, object]:
    """Return each field of a record by its name, JSON-ready."""
    return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}


def values_of(value: object, names: str, convert: Callable[[Any], object] = plain) -> dict[str, object]:
    """Return attributes of ``value``, JSON-ready: ``name`` under their own name, or ``key=path.of.attributes``."""
    words = (word.partition("=") for word in names.split())
    return {key: convert(attrgetter(path or key)(value)) for key, _, path in words}


class Listed:
    """A record whose JSON is its fields in order. ``KEYS`` has those with another key; ``None`` leaves one out."""

    __slots__ = ()
    KEYS: ClassVar[Mapping[str, str | None]] = {}

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the record."""
        names = [entry.name for entry in fields(self)]  # type: ignore[arg-type]  # a record is a dataclass
        keys = ((self.KEYS.get(name, name), name) for name in names)
        return {key: plain(getattr(self, name)) for key, name in keys if key is not None}


def stated_fields(value: DataclassInstance) -> dict[str, object]:
    """Return each field of a record by its name, JSON-ready, except those at their default."""
    values = ((entry, getattr(value, entry.name)) for entry in fields(value))
    return {entry.name: plain(content) for entry, content in values if content != entry.default}


def quoted(path: str) -> str:
    """Return ``path`` in quotes; a long path loses its beginning."""
    return shown(repr(path if len(path) <= _SOURCE else f"…{path[1 - _SOURCE :]}"), _SOURCE * 10)


class Summarised:
    """A record with a one-line ``repr`` and a small table for notebooks."""

    __slots__ = ()

    def _facts(self) -> tuple[str, ...]:
        """Return the main facts: the source, the answer, the counts."""
        raise NotImplementedError

    def _rows(self) -> Iterable[tuple[str, ...]]:
        """Yield the rows of the table that a notebook shows below the facts."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(shown(fact, _SOURCE * 10) for fact in self._facts())})"

    def _repr_html_(self) -> str:
        return "".join(_table(type(self).__name__, self._facts(), [*self._rows()]))


class Printed(Summarised):
    """A record with a JSON document, which is also its ``str()`` unless the class says otherwise."""

    __slots__ = ()

    def to_dict(self) -> dict[str, object]:
        """Return the document of the record's schema."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the document as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True)

    def __str__(self) -> str:
        return self.to_json()


_MOST_ROWS = 12
_MOST_CHARACTERS = 400
_BLOCK = '<div class="mathjax_ignore tex2jax_ignore">'  # a name between dollars is not a formula
_STYLE = "text-align:left;vertical-align:top"
_SHORT = 32
"""Characters of a cell that stays on one line."""


def _table(name: str, facts: Iterable[str], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the facts of the record ``name`` and its first rows as HTML; all text is escaped."""
    yield f"{_BLOCK}<p><strong>{_text(name)}</strong> {' · '.join(map(_text, facts))}</p>"
    if rows:
        yield "<table><tbody>"
        yield from (f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:_MOST_ROWS])
        yield "</tbody></table>"
    if len(rows) > _MOST_ROWS:
        yield f"<p>… and {len(rows) - _MOST_ROWS:,} more (print() shows all)</p>"
    yield "</div>"


def _cell(value: str) -> str:
    wrap = "white-space:nowrap" if len(value) <= _SHORT else "overflow-wrap:anywhere"
    return f'<td style="{_STYLE};{wrap}">{_text(value)}</td>'


def _text(value: str) -> str:
    from html import escape  # only notebooks need it

    return escape(shown(value, _MOST_CHARACTERS))
