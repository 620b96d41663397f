"""The section *Rows*: padding, zeros, copies and tokens that look untrained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tieconv.analysis.model.equal_rows import digests, duplicates, twins
from tieconv.analysis.model.moments import lengths
from tieconv.analysis.model.series import points, ranges
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Array
from tieconv.analysis.relation.related import Related
from tieconv.analysis.retie_cost.zero_row_mass import zero_mass
from tieconv.analysis.rows.undertrained import REFERENCE, Flagged, find
from tieconv.checkpoint.json_values import stated_fields
from tieconv.checkpoint.results.analysis import Detail, Kinship, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.text import count, shown

if TYPE_CHECKING:
    from tieconv.analysis.retie_cost.measured import OnText

TITLE = "Rows"
LISTED = 20
_BROKEN = "rows of the head with NaN or infinity"
_MASS = "probability of the rows of zeros"
_NO_TOKENIZER = "the model directory has no tokenizer.json, vocab.json or vocab.txt"


Ranges = list[list[int]]
"""Half-open ranges of rows, in ascending order: [first, last + 1]."""


@record
class UntrainedToken:
    """A token whose row looks like the rows without a token."""

    id: int
    token: str
    score: float


@record
class RowsDetail(Detail):
    """The rows behind the figures. A group is ``None`` if it is unknown, for example without a tokenizer."""

    zero_rows: Ranges
    duplicate_rows: list[list[int]]
    tokenizer: str | None
    differing_rows_with_token: Ranges | None = None
    differing_rows_without_token: Ranges | None = None
    rows_without_token: Ranges | None = None
    under_trained: tuple[UntrainedToken, ...] | None = None
    indicator: str | None = None

    def to_dict(self) -> dict[str, object]:
        tokens = self.under_trained
        listed = {} if tokens is None else {"under_trained": [stated_fields(token) for token in tokens]}
        return stated_fields(self) | listed


def rows_section(subject: Subject, related: Related | None, measured: OnText | None = None) -> Section:
    """Return the section. ``related`` is ``None`` for a tied model, ``measured`` is ``None`` without a text."""
    table, used = subject.output, subject.used
    norms = related.moments.norms[1] if related else lengths(table)
    zero = norms == 0
    alike = twins(norms, table.width)
    groups = duplicates(digests(table, alike), alike)
    flagged = _flagged(subject, related, norms)
    measures = [
        Measure("rows", float(table.rows), unit="rows"),
        _beyond(subject),
        *_zeros(subject, zero),
        *_zeros_measured(zero, measured),
        *_broken(norms),
        Measure(
            "rows equal to an earlier one", float(sum(len(group) - 1 for group in groups)), n=table.rows, unit="rows"
        ),
        _undertrained(flagged, used, subject),
        *_differing(related, used, subject),
    ]
    judged = flagged if flagged and flagged.distinct else None
    with_token, without_token = _which_differ(related, used)
    detail = RowsDetail(
        ranges(np.flatnonzero(zero)),
        groups[:LISTED],
        subject.tokens.file if subject.tokens else None,
        with_token,
        without_token,
        None if used is None else ranges(np.flatnonzero(~used)),
        tuple(_listed(subject, judged)) if judged else None,
        judged.indicator if judged else None,
    )
    series = {"under_trained_score": points(np.sort(np.nan_to_num(judged.score, posinf=0.0)))} if judged else {}
    sentence = _sentence(subject, (zero, ~np.isfinite(norms)), groups, flagged, _share(measures))
    return Section(TITLE, sentence, tuple(measures), series, detail)


def is_output_shaped(related: Related | None) -> bool:
    """Return whether training of the output shaped the table: always, unless the input table is independent."""
    return related is None or related.kind not in (Kinship.INDEPENDENT, Kinship.PARTLY_EQUAL, Kinship.UNKNOWN)


def _flagged(subject: Subject, related: Related | None, norms: Array) -> Flagged | None:
    if subject.tokens is None:
        return None
    if is_output_shaped(related):
        return find(subject.output, norms, subject.tokens.used(subject.output.rows), output=True)
    assert related is not None
    return find(subject.embed, related.moments.norms[0], subject.tokens.used(subject.embed.rows), output=False)


def _beyond(subject: Subject) -> Measure:
    used, tokens = subject.used, subject.tokens
    if used is None or tokens is None:
        return Measure("rows without a token", None, unit="rows", says=_no_tokenizer(subject))
    rows = float(np.count_nonzero(~used))
    later = int(np.count_nonzero(tokens.possible(len(used)) & ~used))
    says = f"read from {tokens.file}"
    if later:
        says += f"; transformers may give {later:,} of them to tokens that the vocabulary lacks"
    if tokens.undecided:
        says += f"; more tokens are possible: {tokens.undecided}"
    return Measure("rows without a token", rows, n=len(used), unit="rows", says=says)


def _zeros(subject: Subject, zero: Array) -> Iterator[Measure]:
    rows = int(np.count_nonzero(zero))
    yield Measure("rows of zeros in the head", float(rows), n=len(zero), unit="rows")
    if not rows:
        return
    name, floor = _MASS, rows / len(zero)
    if subject.final is None:
        yield Measure(name, None, floor=floor, says="the norm before the head is unknown; measure with --text")
        return
    mass, error = zero_mass(subject.output, subject.final, subject.bias, zero)
    says = (
        f"± {error:.1g}, for random hidden states. Real hidden states may change all other logits together, so measure "
        "with --text. The floor is the share of the rows"
    )
    yield Measure(name, mass, floor=floor, n=rows, says=says)


def _zeros_measured(zero: Array, measured: OnText | None) -> Iterator[Measure]:
    if measured is not None and zero.any():
        floor = float(np.mean(zero))
        yield Measure(f"measured {_MASS}", measured.zero_mass, floor=floor, n=measured.predicted)


def _broken(norms: Array) -> Iterator[Measure]:
    rows = float(np.count_nonzero(~np.isfinite(norms)))
    if rows:
        yield Measure(_BROKEN, rows, n=len(norms), unit="rows")


def _no_tokenizer(subject: Subject) -> str:
    """Return why tieconv does not know which rows have a token."""
    return subject.unlisted or _NO_TOKENIZER


def _undertrained(flagged: Flagged | None, used: Array | None, subject: Subject) -> Measure:
    name = "tokens that look untrained"
    if flagged is None:
        few = f"a comparison needs {REFERENCE} rows without a token"
        return Measure(name, None, unit="tokens", says=_no_tokenizer(subject) if used is None else few)
    if not flagged.distinct:
        says = f"the {flagged.indicator} does not separate the rows without a token from the others"
        return Measure(name, None, n=flagged.reference, unit="tokens", says=says)
    says = f"{flagged.indicator} at most {flagged.threshold:.3g}, as for 95 % of the rows without a token"
    return Measure(name, float(len(flagged.rows)), n=flagged.reference, unit="tokens", says=says)


def _differing(related: Related | None, used: Array | None, subject: Subject) -> Iterator[Measure]:
    if related is None or not related.moments.unequal.any():
        return
    rows = np.flatnonzero(related.moments.unequal)
    if used is None:
        yield Measure("differing rows without a token", None, n=len(rows), unit="rows", says=_no_tokenizer(subject))
        return
    yield Measure("differing rows without a token", float(np.count_nonzero(~used[rows])), n=len(rows), unit="rows")


def _which_differ(related: Related | None, used: Array | None) -> tuple[Ranges | None, Ranges | None]:
    """Return the differing rows as ranges: those with a token, and those without one."""
    if related is None or used is None or not related.moments.unequal.any():
        return None, None
    rows = np.flatnonzero(related.moments.unequal)
    return ranges(rows[used[rows]]), ranges(rows[~used[rows]])


def _share(measures: list[Measure]) -> str:
    """Return the probability of the rows of zeros as text, measured or estimated; empty if it is unknown."""
    values = {measure.name: measure.value for measure in measures}
    for name, source in ((f"measured {_MASS}", "measured on the text"), (_MASS, "estimated")):
        value = values.get(name)
        if value is not None:
            return f"{value:.2g}, {source}"
    return ""


def _listed(subject: Subject, flagged: Flagged) -> Iterator[UntrainedToken]:
    assert subject.tokens is not None
    for row in flagged.rows[:LISTED]:
        text = shown(subject.tokens.text.get(int(row), ""), 60)
        yield UntrainedToken(int(row), text, float(flagged.score[row]))


def _sentence(
    subject: Subject, marks: tuple[Array, Array], groups: list[list[int]], flagged: Flagged | None, share: str
) -> str:
    """Return the sentence. ``marks`` are the rows of zeros, and the rows that are not finite."""
    parts, (zero, broken), used = [], marks, subject.used
    if broken.any():
        parts.append(f"{count(int(np.count_nonzero(broken)), 'row')} of the head with NaN or infinity")
    if used is not None and not used.all():
        parts.append(f"{count(int(np.count_nonzero(~used)), 'row')} without a token")
    if zero.any():
        taken = f" ({share})" if share else ""
        parts.append(
            f"{count(int(np.count_nonzero(zero)), 'row')} of zeros, which take probability{taken}: a zero logit is not "
            "−∞"
        )
    if groups:
        parts.append(f"{count(sum(map(len, groups)), 'row')} in {count(len(groups), 'group')} of equal rows")
    if flagged and flagged.distinct and len(flagged.rows):
        parts.append(f"{count(len(flagged.rows), 'token')} that look as untrained as the rows without a token")
    sentence = "; ".join(parts) if parts else "no special rows"
    reason = _no_tokenizer(subject)
    unknown = f" Tokens were not compared: {reason}." if used is None else ""
    return f"{sentence[0].upper()}{sentence[1:]}.{unknown}"
