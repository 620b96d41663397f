"""Join changes of the same kind into one sentence about several releases and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.plans.meaning import change_sentences
from tieconv.plans.meaning.change_sentences import OWN
from tieconv.plans.meaning.changes import Change


def grouped(changes: Iterable[tuple[str, Change]]) -> Iterator[str]:
    """Yield the sentences about ``changes``, which are pairs of a release and a change."""
    releases: dict[tuple[str, str, str, str | None], list[str]] = {}
    for release, change in changes:
        had, gets = change_sentences.ends(change)
        releases.setdefault((change.name, had, gets, change.origin), []).append(release)
    by_source: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (name, had, gets, origin), some in releases.items():
        values = change_sentences.values_of(origin) if gets == OWN and origin is not None else gets
        by_source.setdefault((had, values, tuple(some)), []).append(name)
    by_fate: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (had, values, together), names in by_source.items():
        own = len(names) == 1 and values == change_sentences.values_of(names[0])
        by_fate.setdefault((had, OWN if own else values, together), []).extend(names)
    for (had, values, together), names in by_fate.items():
        yield change_sentences.changed(together, names, had, values)
