"""The rows of an inspection about a module in memory: shared parameters, and what `save_pretrained` does."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import LiveModel
from tieconv.text import count, listed, shown

_LISTED = 4
Row = tuple[str, ...]


def live_rows(live: LiveModel) -> Iterator[Row]:
    """Yield the groups of one parameter, of one storage, the unread values, and the prediction of a save."""
    yield from _groups("one parameter", live.one_object)
    yield from _groups("one storage", live.one_storage, "several parameters")
    reasons: dict[str, list[str]] = {}
    for name, reason in live.unread:
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield "not read", count(len(names), "tensor"), shown(reason)
    yield from _save(live)


def _groups(label: str, groups: tuple[tuple[str, ...], ...], detail: str = "") -> Iterator[Row]:
    for names in groups[:_LISTED]:
        row = label, ", ".join(map(shown, names[:_LISTED])) + (", …" if len(names) > _LISTED else "")
        yield (*row, detail) if detail else row
    if len(groups) > _LISTED:
        yield label, f"… and {count(len(groups) - _LISTED, 'more group')} (JSON lists them)"


def _save(live: LiveModel) -> Iterator[Row]:
    if not live.saves:
        return
    if live.refusal:
        yield "save_pretrained", "fails", live.refusal
        return
    yield "save_pretrained", f"writes {count(len(live.written), 'tensor')}"
    for name, kept_name in live.left_out[:_LISTED]:
        yield "", f"leaves out {shown(name)}", f"one with {shown(kept_name)}" if kept_name else "never saved"
    if len(live.left_out) > _LISTED:
        names = listed([name for name, _ in live.left_out[_LISTED:]], 2)
        yield "", f"leaves out {names}"
