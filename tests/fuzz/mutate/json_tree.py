"""Damage to JSON: a tree that can hold a key twice and numbers that Python cannot, written as text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tests.fuzz.mutate.edits import NAMES, NUMBERS, edited


class Pairs(list[list[object]]):
    """An object as a list of [key, value], which may repeat a key."""


class Raw(str):
    """Text that stands in the document as it is."""


def tree(value: object) -> object:
    """Return ``value`` with each dict as `Pairs`."""
    if isinstance(value, dict):
        return Pairs([[key, tree(each)] for key, each in value.items()])
    return [tree(each) for each in value] if isinstance(value, list) else value


def text(value: object) -> bytes:
    """Return the document of a tree; lone surrogates stand as escapes."""
    return "".join(_written(value)).encode("utf-8", "surrogatepass")


def _written(value: object) -> list[str]:
    if isinstance(value, Raw):
        return [str(value)]
    if isinstance(value, Pairs):
        parts = [[_string(key), ":", *_written(each)] for key, each in value]
        return ["{", *_joined(parts), "}"]
    if isinstance(value, list):
        return ["[", *_joined([_written(each) for each in value]), "]"]
    return [json.dumps(value)]


def _string(key: object) -> str:
    return str(key) if isinstance(key, Raw) else json.dumps(str(key))


def _joined(parts: list[list[str]]) -> list[str]:
    found: list[str] = []
    for number, part in enumerate(parts):
        found += [","] * bool(number) + part
    return found


ODD: tuple[object, ...] = (
    None, True, False, 0, -1, 1.5, "", "true", "false", "x", Pairs(), [], [None], [Pairs()], Raw("NaN"),
    Raw("-Infinity"), Raw("1e999"), Raw("-0"), Raw("01"), Raw("1" * 25), Raw("1" * 5000), Raw('"\\ud83d"'), Raw("'x'"),
    Raw('"\\u0000"'), Raw("nul"), Raw('"\\u001b[31m"'), Raw('"\\n::error::x"'), Raw("[" * 70 + "]" * 70),
    Raw('{"a":' * 70 + "1" + "}" * 70), Raw("[" * 10_000 + "]" * 10_000),
)  # fmt: skip
"""Values of a type or a size that no reader expects there."""


def changed(rng: random.Random, value: object, extra: tuple[object, ...] = (), most: int = 3) -> object:
    """Return ``value`` (a tree of its own) with up to ``most`` changes; ``extra`` are values that fit the document."""
    value = _copied(value)
    for _ in range(rng.randint(1, most)):
        value = _once(rng, value, extra)
    return value


def damaged(rng: random.Random, value: object, extra: tuple[object, ...] = ()) -> bytes:
    """Return the text of a changed tree, now and then with damaged bytes."""
    data = text(changed(rng, tree(value), extra) if rng.random() < 0.9 else tree(value))
    draw = rng.random()
    if draw < 0.12:
        data = edited(rng, data)
    elif draw < 0.16:
        data = rng.choice((b"\xef\xbb\xbf" + data, data.decode("utf-8", "replace").encode("utf-16"), b" \n" + data,
                           data + b"\n{}", b"[" + data + b"]", b"", b"null", b"// x\n" + data))  # fmt: skip
    return data


def _copied(value: object) -> object:
    if isinstance(value, Pairs):
        return Pairs([[key, _copied(each)] for key, each in value])
    return [_copied(each) for each in value] if type(value) is list else value


def _containers(value: object) -> list[list[object]]:
    found: list[list[object]] = []
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, Pairs):
            found.append(each)  # type: ignore[arg-type]
            pending += [pair[1] for pair in each]
        elif type(each) is list:
            found.append(each)
            pending += each
    return found


def _once(rng: random.Random, value: object, extra: tuple[object, ...]) -> object:
    containers = [each for each in _containers(value) if each]
    if not containers or rng.random() < 0.02:
        return _copied(rng.choice(ODD))
    box = rng.choice(containers)
    at = rng.randrange(len(box))
    rng.choice(_CHANGES if isinstance(box, Pairs) else _OF_LISTS)(rng, box, at, extra)
    return value


def _other(rng: random.Random, extra: tuple[object, ...]) -> object:
    draw = rng.random()
    if extra and draw < 0.4:
        return _copied(rng.choice(extra))
    if draw < 0.55:
        return rng.choice(NUMBERS)
    return rng.choice(NAMES) if draw < 0.75 else _copied(rng.choice(ODD))


def _set(rng: random.Random, box: list[list[object]], at: int, extra: tuple[object, ...]) -> None:
    box[at][1] = _other(rng, extra)


def _rename(rng: random.Random, box: list[list[object]], at: int, extra: tuple[object, ...]) -> None:
    box[at][0] = rng.choice(NAMES)


def _drop(rng: random.Random, box: list[object], at: int, extra: tuple[object, ...]) -> None:
    del box[at]


def _repeat(rng: random.Random, box: list[list[object]], at: int, extra: tuple[object, ...]) -> None:
    box.insert(rng.randint(0, len(box)), [box[at][0], _other(rng, extra)])


def _escape(rng: random.Random, box: list[list[object]], at: int, extra: tuple[object, ...]) -> None:
    box[at][0] = Raw('"' + "".join(f"\\u{ord(one) & 0xFFFF:04x}" for one in str(box[at][0])[:40]) + '"')


def _add(rng: random.Random, box: list[list[object]], at: int, extra: tuple[object, ...]) -> None:
    box.insert(at, [rng.choice(NAMES), _other(rng, extra)])


def _wrap(rng: random.Random, box: list[list[object]], at: int, extra: tuple[object, ...]) -> None:
    box[at][1] = [box[at][1]] if rng.random() < 0.5 else Pairs([[rng.choice(NAMES), box[at][1]]])


def _item(rng: random.Random, box: list[object], at: int, extra: tuple[object, ...]) -> None:
    box[at] = _other(rng, extra)


def _more(rng: random.Random, box: list[object], at: int, extra: tuple[object, ...]) -> None:
    box[at:at] = [_copied(box[at]) for _ in range(rng.choice((1, 2, 80)))]


_CHANGES: tuple[Callable[..., None], ...] = (_set, _set, _set, _rename, _drop, _repeat, _escape, _add, _wrap)
_OF_LISTS: tuple[Callable[..., None], ...] = (_item, _item, _drop, _more)
