"""Render an analysis as text: a sentence for each question, and the figures behind it."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.reporters.text.columns import Paint, columns, plain, wrapped
from tieconv.text import shown


def render(analysis: Analysis, paint: Paint = plain, width: int | None = None) -> str:
    """Return the report without a newline at the end. Sentences are wrapped to ``width`` columns if it is given."""
    source = shown(analysis.source)
    first, *rest = wrapped(f"{source}: {shown(analysis.headline, 2000)}", "", width)
    relation = f"Relation of the two tables: {shown(analysis.relation)}"
    headline = "\n".join((first.replace(source, paint(source, "heading"), 1), *rest, relation))
    return "\n\n".join([headline, *("\n".join(_section(section, paint, width)) for section in analysis.sections)])


def _section(section: Section, paint: Paint, width: int | None) -> Iterator[str]:
    yield paint(shown(section.title), "heading")
    yield from wrapped(shown(section.sentence, 600), "  ", width)
    if section.legend:
        yield from wrapped(shown(section.legend, 900), "  ", width)
    if section.measures:
        known = any(measure.ceiling is not None for measure in section.measures)
        heads = ("figure", "value", "floor", *(["ceiling"] if known else []), "n", "meaning")
        yield from columns([heads, *(_row(measure, known) for measure in section.measures)], "    ", width=width)


def _row(measure: Measure, ceilings: bool) -> tuple[str, ...]:
    return (
        shown(measure.name),
        "not given" if measure.value is None else f"{figure(measure.value)} {shown(measure.units)}".rstrip(),
        "" if measure.floor is None else figure(measure.floor),
        *(["" if measure.ceiling is None else figure(measure.ceiling)] if ceilings else []),
        "" if measure.n is None else f"{measure.n:,}",
        shown(measure.says, 400),
    )


def figure(value: float) -> str:
    """Return ``value`` with three digits, or in full if it is a whole number."""
    if value == int(value) if abs(value) < 1e15 else False:
        return f"{int(value):,}"
    return f"{value:.3g}"
