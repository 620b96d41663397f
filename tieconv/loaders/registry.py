"""All loaders, in the order of the documentation."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from tieconv.errors import TieconvError
from tieconv.loaders import (
    accelerate,
    ctranslate2,
    llama_cpp,
    mlx_lm,
    onnxruntime_genai,
    safetensors_load_model as safetensors,
    sglang,
    tensorrt_llm,
    tgi,
    transformers4,
    transformers5,
    vllm,
)
from tieconv.loaders.interface import Asked, Consumer, Version
from tieconv.text import close, shown

_FILE = "src/transformers/modeling_utils.py"
_V4, _V5 = f"{_FILE}, tie_weights and _load_pretrained_model", f"{_FILE}, PreTrainedModel.tie_weights"
_TRANSFORMERS = (
    ("4.48", (4, 45), (4, 49), "4.48.3", _V4, partial(transformers4.load, version="4.48")),
    ("4.57", (4, 49), (5, 0), "4.57.6", _V4, partial(transformers4.load, version="4.57")),
    ("5.0", (5, 0), (5, 4), "5.0.0", _V5, transformers5.load_50),
    ("5.x", (5, 4), None, "5.23.0", _V5, transformers5.load),
)
"""Each version, its range, the release that ran, and what that release does it in."""

CONSUMERS: tuple[Consumer, ...] = (
    *(
        Consumer("transformers", version, since, f"transformers {ran}, {function}", load, before, ran=(ran,))
        for version, since, before, ran, function, load in _TRANSFORMERS
    ),
    *safetensors.CONSUMERS,
    *accelerate.CONSUMERS,
    *vllm.CONSUMERS,
    *sglang.CONSUMERS,
    *llama_cpp.CONSUMERS,
    *mlx_lm.CONSUMERS,
    *tgi.CONSUMERS,
    *tensorrt_llm.CONSUMERS,
    *onnxruntime_genai.CONSUMERS,
    *ctranslate2.CONSUMERS,
)


def consumer(loader: str, release: str) -> Consumer:
    """Return the consumer with this name and version. Raises `KeyError`."""
    return {(entry.name, entry.version): entry for entry in CONSUMERS}[loader, release]


# Select loaders by a specification such as `vllm,transformers>=4.57`.

ALL = "all"
_PART = re.compile(r"([A-Za-z][A-Za-z0-9._-]*?)\s*(?:(>=|<=|==|<|>|(?<=\s))\s*v?(\d+(?:\.\d+)*)(?:\.(?:x|\*))?)?")


class UnknownConsumerError(TieconvError):
    """tieconv knows no loader with that name, or no such version of it."""


def select(spec: str) -> tuple[Consumer, ...]:
    """Return the loaders that a specification selects, in the order of the documentation.

    Commas separate its parts. A part is a name (all known versions), `name>=V`, `name<=V`, `name==V`, `name V`,
    `name<V`, `name>V`, or a name with the printed version (`tensorrt-llm engine`). The result is the union of the
    parts, and `all` selects every loader. Raises `UnknownConsumerError`.
    """
    chosen: dict[tuple[str, str], Consumer] = {}
    for part in spec.split(","):
        for consumer in _part(part.strip(), CONSUMERS):
            chosen.setdefault((consumer.name, consumer.version), consumer)
    keys = [(consumer.name, consumer.version) for consumer in (vllm.OLD, *CONSUMERS)]
    return tuple(chosen[key] for key in keys if key in chosen)


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
        similar = close(name.lower(), {consumer.name for consumer in consumers})
        suggestion = f"; did you mean {similar[0]}?" if similar else ""
        raise _unknown(f'unknown loader "{shown(name)}"{suggestion}', consumers)
    if version is None:
        return named
    wanted = tuple(map(int, version.split(".")))
    old = [vllm.OLD] if sign in ("==", "") and vllm.OLD.name == name.lower() else []
    meeting = [consumer for consumer in (*old, *named) if _meets(consumer, sign, wanted)]
    if not meeting:
        first = ".".join(map(str, min(consumer.since for consumer in (*old, *named))))
        raise _unknown(f"tieconv does not know what {shown(part)} does; the oldest that it knows is {first}", consumers)
    every = tuple(version for consumer in named for version in consumer.ran)
    return [replace(consumer, asked=_asked(consumer, Asked(sign or "", wanted)), every=every) for consumer in meeting]


def _asked(consumer: Consumer, asked: Asked) -> Asked | None:
    """Return the releases that the user named, by the numbers of those that ran; ``None`` if they are the consumer.

    llama.cpp has a year, and the release that ran has another number: every number before that year is older.
    """
    if not consumer.version.isdigit() or asked.version < (2000,):
        return asked
    if asked.includes(consumer.version):
        return None
    return asked if asked.is_above(consumer.version) else Asked("<", (0,))


def _words(text: str) -> list[str]:
    return text.lower().split()


def _meets(consumer: Consumer, sign: str, wanted: Version) -> bool:
    """Return whether a version in the consumer's range satisfies the constraint; ``==5`` includes every 5.y."""
    family = consumer.since[: len(wanted)] == wanted
    wanted, since = _without_zeros(wanted), _without_zeros(consumer.since)
    reaches = consumer.before is None or _without_zeros(consumer.before) > wanted
    match sign:
        case "<":
            return since < wanted
        case "<=":
            return since <= wanted
        case "==" | "":
            return reaches and (since <= wanted or family)
    return reaches


def _without_zeros(version: Version) -> Version:
    """Return the version without trailing zeros: 5.0 becomes 5."""
    while version and version[-1] == 0:
        version = version[:-1]
    return version


def _unknown(message: str, consumers: tuple[Consumer, ...]) -> UnknownConsumerError:
    known = ", ".join(f"{consumer.name} {consumer.version}" for consumer in consumers)
    return UnknownConsumerError(message, f"give one of: {known}, all", "consumers.unknown")
