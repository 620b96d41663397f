"""Frozen dataclasses that are cheap to define.

`dataclasses.dataclass(frozen=True, slots=True)` compiles six methods for each class at every start of the program. That
takes some 0.4 ms a class; thirty classes cost more than importing Click. For every function of that module (`fields`,
`replace`, `asdict`) and for a type checker, a `record` is a dataclass. Its classes share their methods. Making an
instance takes about 2 µs instead of 0.6. A class with half a million instances therefore has its own `__init__`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


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
