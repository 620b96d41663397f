"""Which loaders a user asked for: `vllm,transformers>=4.57`."""

from __future__ import annotations

import re

from tieconv.errors import TieconvError
from tieconv.loaders.interface import Consumer, Version
from tieconv.text import shown

ALL = "all"
_PART = re.compile(r"([A-Za-z][A-Za-z0-9._-]*?)\s*(?:(>=|<=|==|<|>|(?<=\s))\s*v?(\d+(?:\.\d+)*)(?:\.(?:x|\*))?)?")


class UnknownConsumerError(TieconvError):
    """No loader has that name, or none at that version is known."""


def select(spec: str) -> tuple[Consumer, ...]:
    """Return the loaders that a specification names, in the order of the documentation.

    Its parts, between commas, are a name (all known versions), `name>=V`, `name<=V`, `name==V`, `name V`, `name<V`,
    `name>V`, or a name with the version as it is printed (`tensorrt-llm engine`). Each part adds to the others.
    `all` is every loader. Raises `UnknownConsumerError`.
    """
    from tieconv.loaders.registry import CONSUMERS

    chosen: set[Consumer] = set()
    for part in spec.split(","):
        chosen.update(_part(part.strip(), CONSUMERS))
    return tuple(consumer for consumer in CONSUMERS if consumer in chosen)


def _part(part: str, consumers: tuple[Consumer, ...]) -> list[Consumer]:
    if part == ALL:
        return list(consumers)
    printed = [consumer for consumer in consumers if _words(f"{consumer.name} {consumer.version}") == _words(part)]
    if printed:
        return printed
    match = _PART.fullmatch(part)
    if match is None:
        message = f'unknown loader "{shown(part)}"' if part else "the list of loaders has an empty part"
        raise _unknown(message, consumers)
    name, sign, version = match.groups()
    named = [consumer for consumer in consumers if consumer.name == name.lower()]
    if not named:
        raise _unknown(f'unknown loader "{shown(name)}"', consumers)
    if version is None:
        return named
    wanted = tuple(map(int, version.split(".")))
    meeting = [consumer for consumer in named if _meets(consumer, sign, wanted)]
    if not meeting:
        raise _unknown(f"tieconv does not know what {shown(part)} does", consumers)
    return meeting


def _words(text: str) -> list[str]:
    return text.lower().split()


def _meets(consumer: Consumer, sign: str, wanted: Version) -> bool:
    """Whether some version of the consumer's range satisfies the constraint; ``==5`` takes in every 5.y."""
    wanted, since = _plain(wanted), _plain(consumer.since)
    reaches = consumer.before is None or _plain(consumer.before) > wanted
    match sign:
        case "<":
            return since < wanted
        case "<=":
            return since <= wanted
        case "==" | "":
            return reaches and (since <= wanted or since[: len(wanted)] == wanted)
    return reaches


def _plain(version: Version) -> Version:
    """Without zeros at the end: 5.0 is 5."""
    while version and version[-1] == 0:
        version = version[:-1]
    return version


def _unknown(message: str, consumers: tuple[Consumer, ...]) -> UnknownConsumerError:
    known = ", ".join(f"{consumer.name} {consumer.version}" for consumer in consumers)
    return UnknownConsumerError(message, f"give one of: {known}, all", "consumers.unknown")
