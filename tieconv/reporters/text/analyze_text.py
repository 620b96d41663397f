"""Render an analysis as text: a sentence for each question, and the figures behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.results.analysis import Analysis, Evolution, Measure, Section
from tieconv.reporters.text import Paint, columns, marked, plain, wrapped
from tieconv.text import count, shown


def render_analysis(analysis: Analysis, paint: Paint = plain, width: int | None = None) -> str:
    """Return the report without a newline at the end. Sentences are wrapped to ``width`` columns if it is given."""
    source = shown(analysis.source)
    lines = marked(f"{source}: {shown(analysis.headline, 2000)}", "", width, paint, source, "heading")
    headline = "\n".join((*lines, f"Relation of the two tables: {shown(analysis.relation)}"))
    return "\n\n".join(
        [headline, *("\n".join(_section(section, paint, width)) for section in analysis.beyond_headline)]
    )


def _section(section: Section, paint: Paint, width: int | None) -> Iterator[str]:
    yield paint(shown(section.title), "heading")
    yield from wrapped(shown(section.sentence, 600), "  ", width)
    if section.legend:
        yield from wrapped(shown(section.legend, 900), "  ", width)
    if section.figures:
        known = any(measure.ceiling is not None for measure in section.figures)
        heads = ("figure", "value", "floor", *(["ceiling"] if known else []), "n", "meaning")
        yield from columns([heads, *(_row(measure, known) for measure in section.figures)], "    ", width=width)


def _row(measure: Measure, ceilings: bool) -> tuple[str, ...]:
    return (
        shown(measure.name),
        "not given" if measure.value is None else f"{figure(measure.value)} {shown(measure.units)}".rstrip(),
        "" if measure.floor is None else figure(measure.floor),
        *(["" if measure.ceiling is None else figure(measure.ceiling)] if ceilings else []),
        "" if measure.n is None else f"{measure.n:,}",
        shown(measure.meaning, 400),
    )


def figure(value: float) -> str:
    """Return ``value`` with three digits, or in full if it is a whole number."""
    if value == int(value) if abs(value) < 1e15 else False:
        return f"{int(value):,}"
    return f"{value:.3g}"


_AGREEMENT = {
    "E→U": "How far the input embedding (E) and the head (U) agree",
    "E→T": "How far the untied input embedding (E) and the tied table (T) agree",
    "U→T": "How far the untied head (U) and the tied table (T) agree",
}


def render_evolution(evolution: Evolution, paint: Paint = plain, width: int | None = None) -> str:
    """Return the report without a newline at the end. Sentences are wrapped to ``width`` columns if it is given."""
    source = shown(evolution.source)
    reused = sum(revision.reused for revision in evolution.revisions)
    lines = marked(f"{source}: {shown(evolution.headline, 2000)}", "", width, paint, source, "heading")
    if reused:
        lines.append(f"An earlier run measured {reused} of these {count(len(evolution.revisions), 'revision')}.")
    return "\n\n".join(["\n".join(lines), *("\n".join(block) for block in _blocks(evolution, paint))])


def _blocks(evolution: Evolution, paint: Paint) -> Iterator[list[str]]:
    names = evolution.names
    moved = [name for start in ("cosine ", "mean norm ") for name in names if name.startswith(start)]
    # A narrower heading: "E to first" for "cosine E to first".
    heads = {name.removeprefix("cosine ").replace("mean norm ", "norm "): name for name in moved}
    yield [paint("How far the rows moved, and their mean length", "heading"), *_table(evolution, heads)]
    for pair, heading in _AGREEMENT.items():
        agreeing = [name for name in names if name.endswith(f" {pair}")]
        if agreeing:
            yield [
                paint(heading, "heading"),
                *_table(evolution, {name.removesuffix(f" {pair}"): name for name in agreeing}),
            ]


def _table(evolution: Evolution, heads: dict[str, str]) -> list[str]:
    rows: list[Sequence[str]] = [("revision", *heads, "")]
    for revision in evolution.revisions:
        rows.append((shown(revision.name, 40), *(_value(revision.measure(name)) for name in heads.values()), ""))
    floors = [evolution.revisions[-1].measure(name) for name in heads.values()]
    values = (None if measure is None else measure.floor for measure in floors)
    rows.append(("floor, last revision", *("" if value is None else _short_figure(value) for value in values), ""))
    return columns(rows, "  ")


def _value(measure: Measure | None) -> str:
    return "" if measure is None else "not given" if measure.value is None else _short_figure(measure.value)


def _short_figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.3f}" if 0.0005 <= abs(value) < 1000 else figure(value)
