"""Render a comparison of two models as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tieconv.checkpoint.phrases import measured
from tieconv.checkpoint.relation import Absent, Aliased, Canonical, proved
from tieconv.checkpoint.results import comparison as results
from tieconv.reporters.text import Paint, columns, plain, wrapped
from tieconv.reporters.text.inspect_text import related
from tieconv.text import count, json_value, shown, size

_SHOWN = 20
_ONLY = {results.Contrast.ONLY_A: "only in A", results.Contrast.ONLY_B: "only in B"}
_WEIGHTS = {
    results.Weight.COSMETIC: "cosmetic",
    results.Weight.TENSORS: "decided by the tensors",
    results.Weight.FUNCTION: "may change the outputs",
}


def render(comparison: results.Comparison, paint: Paint = plain, width: int | None = None) -> str:
    """Return the report without a newline at the end. Sentences are wrapped to ``width`` columns if it is given."""
    blocks = ["\n".join(_title(comparison, paint, width))]
    parts = {part for matrix in comparison.matrices for part in matrix.parts}
    if comparison.matrices:
        blocks.append(
            "\n".join([paint("quantised matrices", "heading"), *_limited(map(_matrix, comparison.matrices), width)])
        )
    tensors = [entry for entry in comparison.tensors if not {entry.a, entry.b} - {None} <= parts]
    if tensors:
        blocks.append("\n".join([paint("tensors", "heading"), *_limited(map(_tensor, tensors), width)]))
    if comparison.config:
        blocks.append("\n".join([paint("config", "heading"), *_limited(map(_config, comparison.config), width)]))
    if comparison.files:
        rows = ((shown(file.name), _ONLY.get(file.contrast, file.contrast)) for file in comparison.files)
        blocks.append("\n".join([paint("other files", "heading"), *_limited(rows, width)]))
    blocks.append("\n".join(_verdict(comparison, paint, width)))
    return "\n\n".join(blocks)


def _title(comparison: results.Comparison, paint: Paint, width: int | None) -> Iterator[str]:
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        architecture = shown(side.architecture) if side.architecture else "no known architecture"
        amount = f"{count(side.tensors, 'tensor')}, {size(side.bytes_stored)}"
        title = f"{paint(shown(side.source), 'heading')}: {architecture}, {side.format}, {amount}"
        yield from wrapped(title, f"{letter}  ", width)


def _limited(rows: Iterator[tuple[str, ...]], width: int | None) -> list[str]:
    every = list(rows)
    lines = columns(every[:_SHOWN], width=width)
    left = len(every) - _SHOWN
    return [*lines, f"  … and {left:,} more (--json lists them)"] if left > 0 else lines


def _matrix(difference: results.MatrixDifference) -> tuple[str, ...]:
    a, b = (_described(side) for side in (difference.a, difference.b))
    if difference.relation is None:
        only = f"only in {'A' if difference.b is None else 'B'}: {a or b} in {count(len(difference.parts), 'part')}"
        return shown(difference.name), only
    which = a if a == b else f"{a} in A, {b} in B"
    return shown(difference.name), f"{which}: {related(difference.relation)}"


def _described(side: results.MatrixSide | None) -> str:
    if side is None:
        return ""
    bits = f", {count(side.bits, 'bit')}" if side.bits else ""
    return f"{shown(side.scheme) or 'unknown scheme'}{bits}"


def _tensor(difference: results.TensorDifference) -> tuple[str, ...]:
    loaders = "" if len(difference.loaders) > 1 else f" (as {difference.loaders[0]} loads it)"
    return shown(difference.name), _contrast(difference) + loaders


def _contrast(difference: results.TensorDifference) -> str:
    match difference.evidence:
        case results.OnlyHere(shape=shape, dtype=dtype):
            return f"{_ONLY[difference.contrast]}: {list(shape)} {shown(dtype)}"
        case results.Shapes(a=a, b=b):
            return f"shape {list(a)} against {list(b)}"
        case results.ForwardScale(reason=reason):
            return shown(reason)
        case results.Values(relation=relation):
            return _relation(difference.contrast, relation)
        case _:
            assert_never(difference.evidence)


def _relation(contrast: results.Contrast, relation: proved.Relation) -> str:
    match relation:
        case proved.Transposed():
            return "transposed"
        case proved.Cast(lossless=True):
            return "the same values in another dtype"
        case proved.Cast(exact=exact):
            return f"equal after a cast; {exact} has the full precision"
        case proved.Scaled(factor=factor):
            return f"B is {factor} times A"
        case (
            proved.Near()
            | proved.Different()
            | proved.Empty()
            | proved.OtherShape()
            | proved.OtherBytes()
            | proved.OtherSample()
            | proved.Unread()
        ):
            return f"{contrast}: {measured(relation)}"
        case Canonical() | Absent() | Aliased() | proved.Identical():
            return str(contrast)
        case _:
            assert_never(relation)


def _config(difference: results.ConfigDifference) -> tuple[str, ...]:
    old = json_value(difference.a, difference.in_a, 60)
    new = json_value(difference.b, difference.in_b, 60)
    return shown(difference.path), f"{old} → {new}", _WEIGHTS[difference.weight]


def _verdict(comparison: results.Comparison, paint: Paint, width: int | None) -> Iterator[str]:
    verb = "is" if comparison.equal == 1 else "are"
    yield f"{count(comparison.equal, 'parameter')} {verb} equal ({size(comparison.bytes_compared)} read)."
    for note in comparison.notes:
        yield from wrapped(shown(note, 400), "note: ", width)
    if comparison.same_function:
        yield paint("A and B compute the same function.", "good")
    for reason in comparison.reasons:
        yield from wrapped(shown(reason, 400), f"{paint('A and B differ', 'error')}: ", width)
