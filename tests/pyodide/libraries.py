"""Libraries that Pyodide lacks, in a process beside it: the tests there build models with them, and tieconv has none.

The process holds the objects. Pyodide has a `Remote` for each, and sends what is done with it. Both have the files.
"""

from __future__ import annotations

import builtins
import importlib
import io
import operator
import os
import pickle
import struct
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, ClassVar
from weakref import WeakValueDictionary

ROOT = Path(__file__).parents[2]
PACKAGES = frozenset(
    ("gguf", "jsonschema", "ml_dtypes", "numpy", "onnx", "safetensors", "tokenizers", "torch", "transformers", "yaml")
)
_BY_VALUE = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, slice, range)
_SENT = frozenset((*_BY_VALUE, type(None), type(...), PosixPath, OrderedDict))


class LibraryError(Exception):
    """An exception of a library that is no built-in one."""


class Remote:
    """An object of the process."""

    _ask: Callable[[bytes], bytes]
    _dropped: ClassVar[list[int]] = []
    _alive: ClassVar[WeakValueDictionary[int, Remote]] = WeakValueDictionary()

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "_number", number)

    @staticmethod
    def of(number: int) -> Remote:
        """The one object here for one object there."""
        if (remote := Remote._alive.get(number)) is None:
            Remote._alive[number] = remote = Remote(number)
        else:
            Remote._dropped.append(number)  # it was counted again
        return remote

    def __del__(self) -> None:
        Remote._dropped.append(self._number)

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        raise LibraryError("a class of a library cannot be derived from")

    def __getattr__(self, name: str) -> Any:
        if name == "_number":  # of a copy that is being made
            raise AttributeError(name)
        return ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        ask("delattr", self, name)

    def __call__(self, *words: Any, **options: Any) -> Any:
        return ask("call", self, *words, **options)

    def __iter__(self) -> Iterator[Any]:
        return iter(ask("list", self))

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *_: object) -> None:
        self.__getattr__("__exit__")(None, None, None)

    def __hash__(self) -> int:
        return ask("hash", self)

    def __reduce_ex__(self, _: object) -> str:
        raise LibraryError("an object of a library is not pickled")

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and ask("isinstance", instance, self)


def _forward(operation: str, reflected: bool = False) -> Any:
    def forwarded(self: Remote, *words: Any) -> Any:
        return ask(operation, *reversed((self, *words))) if reflected else ask(operation, self, *words)

    return forwarded


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
for _name in _BINARY.split():
    _function = f"{_name}_" if _name in ("and", "or") else _name
    setattr(Remote, f"__{_name}__", _forward(_function))
    setattr(Remote, f"__r{_name}__", _forward(_function, reflected=True))
_OTHERS = (
    "eq ne lt le gt ge neg pos abs invert index getitem setitem delitem contains "
    "len bool int float complex bytes str repr format round"
)
for _name in _OTHERS.split():
    setattr(Remote, f"__{_name}__", _forward(_name))


class _Writer(pickle.Pickler):
    """Writes plain values as such, and others by the number that ``number_of`` gives them."""

    def __init__(self, file: BinaryIO, number_of: Callable[[Any], int | None]) -> None:
        super().__init__(file, 4)
        self.persistent_id = number_of  # type: ignore[method-assign]


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, object_of: Callable[[Any], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.persistent_load = object_of  # type: ignore[method-assign]


def _written(value: object, number_of: Callable[[Any], int | None]) -> bytes:
    file = io.BytesIO()
    _Writer(file, number_of).dump(value)
    return file.getvalue()


def _number(value: object) -> int | None:
    if isinstance(value, io.IOBase):
        raise LibraryError("a library gets no open file")
    return value._number if type(value) is Remote else None


def ask(operation: str, *words: Any, **options: Any) -> Any:
    """Do something in the process, and return the result. Raises what it raises there."""
    for stream in words:
        if isinstance(stream, io.IOBase):
            return _with_stream(stream, operation, *words, **options)
    dropped, Remote._dropped = Remote._dropped, []
    request = (os.getcwd(), dropped, operation, words, options)
    data = _written(request, _number)
    good, result = _Reader(Remote._ask(data), Remote.of).load()
    if good:
        return result
    name, text = result
    kind = getattr(builtins, name, None)
    raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else LibraryError)(text)


def _with_stream(stream: Any, operation: str, *words: Any, **options: Any) -> Any:
    """`ask` with a buffer in place of an open file. What is read or written moves to the file."""
    start = stream.tell()
    buffer = ask(
        "call", ask("getattr", ask("import", "io"), "BytesIO"), before := stream.read() if stream.readable() else b""
    )
    result = ask(operation, *(buffer if word is stream else word for word in words), **options)
    stream.seek(start)
    if (after := buffer.getvalue()) != before:
        stream.write(after)
    stream.seek(start + buffer.tell())
    return result


def _call(function: Callable[..., Any], *words: Any, **options: Any) -> Any:
    return function(*words, **options)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until their end."""
    objects: dict[int, Any] = {}
    counts: Counter[int] = Counter()

    def number_of(value: Any) -> int | None:
        if type(value) in _SENT or (isinstance(value, type) and value in _SENT):
            return None
        objects[id(value)] = value
        counts[id(value)] += 1
        return id(value)

    operations: dict[str, Callable[..., Any]] = {"call": _call, "import": importlib.import_module}
    while head := requests.read(8):
        data = requests.read(*struct.unpack("<Q", head))
        try:
            cwd, dropped, operation, words, options = _Reader(data, objects.__getitem__).load()
            for number in dropped:
                counts[number] -= 1
                if not counts[number]:
                    del objects[number]
            os.chdir(cwd)
            function = operations.get(operation) or getattr(operator, operation, None) or getattr(builtins, operation)
            result = function(*words, **options)
            if type(result).__name__ in ("bool", "bool_"):
                result = bool(result)
            elif isinstance(result, tuple) and not hasattr(result, "_fields"):
                result = tuple(result)
            answer = _written((True, result), number_of)
        except BaseException as error:  # a panic of Rust is no `Exception`
            answer = _written((False, (type(error).__name__, str(error))), number_of)
        answers.write(struct.pack("<Q", len(answer)) + answer)
        answers.flush()


def is_within(module: Mapping[str, Any], *folders: str) -> bool:
    """Whether a module, given by its names, lies in one of the folders of this repository."""
    path = str(module.get("__file__"))
    return any(path.startswith(str(ROOT / folder) + os.sep) for folder in folders)


def give_to_tests(asked: Callable[[bytes], bytes]) -> None:
    """Let the tests import `PACKAGES` from the process; for all other modules they are absent."""
    Remote._ask = staticmethod(asked)
    real = builtins.__import__

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or name.partition(".")[0] not in PACKAGES or not is_within(globals or {}, "tests", "fixtures"):
            return real(name, globals, locals, fromlist, level)
        module = ask("import", name)
        return module if fromlist else ask("import", name.partition(".")[0])

    builtins.__import__ = imported


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    serve(sys.stdin.buffer, answers)
