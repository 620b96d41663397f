"""The differential rule, and every difference that it leaves silent, with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fuzz.reference import Reading, Verdict


@dataclass(frozen=True)
class Listed:
    """A refusal of a reference reader, by its words, that tieconv need not repeat."""

    kind: str
    words: str
    reason: str


LISTED: tuple[Listed, ...] = (
    Listed(
        "onnx",
        r"session: .*(Type Error|TypeInferenceError|ShapeInferenceError|NOT_IMPLEMENTED)"
        r"|is not a registered function/op|No schema registered",
        "tieconv infers no types and shapes of computed values, and knows no operators of other domains; dedup and "
        "untie open a session before they write",
    ),
)
COUNTED = frozenset({"safetensors", "torch", "gguf"})
"""Kinds whose reference reader sees every tensor that tieconv sees."""


def differences(kind: str, ours: Reading, theirs: Verdict) -> Iterator[str]:
    """Yield each way in which tieconv is silent about what the format's own reader refuses or sees otherwise."""
    if not ours.silent:
        return
    if theirs.why:
        if listed(kind, theirs.why) is None:
            yield f"silent, but refused by the reference: {theirs.why}"
        return
    for name, seen in theirs.tensors.items():
        if name not in ours.tensors:
            yield f"the reference sees a tensor {name!a} that tieconv does not"
        elif not all(
            one in ("", None) or other is None or one == other
            for one, other in zip(seen, ours.tensors[name], strict=True)
        ):
            yield f"tensor {name!a}: the reference sees {seen}, tieconv {ours.tensors[name]}"
    if kind in COUNTED and theirs.tensors and len(theirs.tensors) != len(ours.tensors):
        yield f"the reference sees {len(theirs.tensors)} tensors, tieconv {len(ours.tensors)}"


def listed(kind: str, why: str) -> Listed | None:
    """Return the listed difference that a refusal belongs to."""
    return next((one for one in LISTED if one.kind == kind and re.search(one.words, why, re.DOTALL)), None)
