"""What a comparison proved, in words: the same ones wherever a report, a finding or a refusal says it."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import Detail, Member, State
from tieconv.text import count, shown

_RANGES = 4
"""Ranges of rows that a phrase lists before it only counts the rows."""


def difference(member: Member, noun: str = "rows") -> str:
    """How a member differs from its group's reference: ``it is the transpose``, ``in row 7 of 8, by at most 0.5``."""
    detail = member.detail
    if "shape" in detail:
        return f"shape {detail['shape']} against {detail.get('canonical_shape')}"
    match member.state:
        case State.TRANSPOSED:
            return "it is the transpose"
        case State.CAST:
            return f"equal after a cast, {shown(detail.get('exact'))} holds the full precision"
        case State.SCALED:
            return f"it is {detail.get('factor')} times as large"
    if detail.get("sign_of_zero_only"):
        return "only in the sign of zeros"
    return _rows(detail, noun) or shown(detail.get("reason", "in its bytes"))


def is_apart(member: Member) -> str:
    """`difference` as a clause of its own: ``they differ in row 7 of 8``."""
    phrase = difference(member)
    return f"they differ {phrase}" if phrase.startswith(("in ", "only in ")) else phrase


def _rows(detail: Detail, noun: str) -> str:
    differing, rows, ranges = detail.get("rows_differing"), detail.get("rows"), detail.get("row_ranges")
    if not isinstance(differing, int) or not isinstance(rows, int):
        return ""
    where = f"in {differing:,} of {rows:,} {noun}"
    if 0 < differing < rows and isinstance(ranges, (list, tuple)) and 0 < len(ranges) <= _RANGES:
        word = noun if differing > 1 else noun.removesuffix("s")
        where = f"in {word} {', '.join(_range(*pair) for pair in ranges)} of {rows:,}"
    largest = detail.get("max_abs")
    return f"{where}, by at most {largest:.3g}" if isinstance(largest, float) else where


def _range(start: int, end: int) -> str:
    return f"{start}–{end - 1}" if end - start > 1 else str(start)


def measured(detail: Detail) -> str:
    """The figures of a difference for a table: rows, ulp, the largest difference; where there are none, the reason.

    Of distinct tensors the cosine is told and no ulp, which counts to billions across a zero.
    """
    if detail.get("sign_of_zero_only"):
        return "only the sign of zeros differs"
    ranges = detail.get("ranges_differing")
    if isinstance(ranges, list):
        return f"its bytes {', '.join(f'{start:,} to {end:,}' for start, end in ranges)} differ"
    return ", ".join(_measures(detail)) or shown(detail.get("reason", "its bytes differ"))


def _measures(detail: Detail) -> Iterator[str]:
    rows = detail.get("rows_differing")
    if not isinstance(rows, int):
        return
    yield f"{rows:,} of {detail.get('rows'):,} rows differ"
    if "cosine" in detail:  # of distinct tensors
        if isinstance(detail["cosine"], float):
            yield f"cosine {detail['cosine']:.2g}"
    elif isinstance(detail.get("max_ulp"), int):
        yield f"max {detail['max_ulp']:,} ulp"
    if isinstance(detail.get("max_abs"), float):
        yield f"max |difference| {detail['max_abs']:.4g}"
    nan_rows = detail.get("nan_rows")
    if isinstance(nan_rows, int) and nan_rows:
        yield f"NaN in {count(nan_rows, 'row')}"
