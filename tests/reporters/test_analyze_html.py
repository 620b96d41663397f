"""The page of an analysis: whole, harmless, and drawn right."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from math import inf, isfinite, log10, nan

import pytest
from hypothesis import HealthCheck, given, settings

from tests.patience import examples
from tests.reporters.reports import BAITS, analyses, full
from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.reporters.html import STYLE
from tieconv.reporters.html.analyze_page import plots, render_analysis as render
from tieconv.reporters.html.svg import Frame, figure, step_of, ticks
from tieconv.reporters.text.analyze_text import render_analysis as plain_text

_VOID = {"meta", "link", "input"}
_KNOWN = {
    "html", "head", "meta", "link", "title", "style", "body", "main", "header", "h1", "h2", "h3", "code", "div", "span",
    "input", "label", "p", "section", "figure", "figcaption", "ul", "li", "i", "svg", "path", "rect", "text",
    "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "footer",
}  # fmt: skip


class Page(HTMLParser):
    """Checks that elements nest, and keeps what could load, run or be read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def harmless(text: str) -> Page:
    """Only our elements, nothing that loads or runs, only finite coordinates."""
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag in _KNOWN, tag
        assert not any(name.startswith("on") for name in attributes)
        assert not {"src", "srcset", "action", "style", "xlink:href"} & set(attributes)
        assert tag == "link" or "href" not in attributes
        assert tag != "input" or attributes["type"] == "radio"
        for name in ("d", "x", "y", "width", "height", "viewbox", "viewBox", "transform"):
            assert not re.search("nan|inf|e[+-]", attributes.get(name) or ""), attributes
    assert "url(" not in text and "@import" not in text and "<script" not in text.lower()
    return page


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(analyses)
def test_nothing_breaks_out(analysis: Analysis) -> None:
    """Any names and any numbers give a page of our elements alone, that asks for nothing and encodes as UTF-8."""
    text = render(analysis)
    harmless(text)
    assert text.encode()
    assert all(character.isprintable() or character == "\n" for character in text)


def test_a_number_beyond_all_others_is_drawn_somewhere() -> None:
    """Of 10⁶⁷ beside 10⁻²³⁹ no scale is left, and the coordinates are numbers all the same."""
    norms = (0.0, 0.0, 0.0, 3.6e-239, -3.3e67)
    harmless(render(Analysis("m", (Section("s", "", (), {"embed_norm": norms}),), "k", "v")))


@pytest.mark.parametrize("bait", BAITS)
def test_each_bait_in_each_place(bait: str) -> None:
    """A hostile name stands on the page as text, in each place where names stand."""
    section = Section(bait, bait, (Measure(bait, 1.0, 0.5, 2.0, 3, bait, bait),), {f"loss {bait}": (1.0, 2.0)})
    section_with_map = Section(
        "map", "", (), {"plane_x": (1.0, 2.0), "plane_y": (1.0, 2.0), f"plane_colour {bait}": (1.0, 2.0)}
    )
    harmless(render(Analysis(bait, (section, section_with_map), bait, bait)))


def test_small_and_whole() -> None:
    """With every plot at full length the page stays below a megabyte, declares its policy and fits a phone."""
    text = render(full())
    assert len(text.encode()) < 1_000_000
    page = harmless(text)
    metas = [attributes for tag, attributes in page.elements if tag == "meta"]
    assert any("default-src 'none'" in (meta.get("content") or "") for meta in metas)
    assert any(meta.get("name") == "viewport" for meta in metas)
    assert "prefers-color-scheme:dark" in text


def test_every_plot_is_there() -> None:
    """Each kind of series has its plot, and each plot a sentence."""
    drawn = [plot for section in full().sections for plot in plots(section)]
    assert [plot.heading for plot in drawn] == [
        "Agreement, compared with chance and with two untied seeds",
        "Norm profile",
        "Map of tokens", "Where the two tables differ", "Bias against word frequency",
        "Implicit bias U·mean(h) against word frequency", "Bias by row", "Untrained tokens", "Training",
    ]  # fmt: skip
    assert all(plot.says.endswith(".") and plot.drawing.startswith("<svg") for plot in drawn)


def test_every_number_of_a_table_is_shown() -> None:
    """Value, chance, ceiling and count of each measure stand on the page, with what they mean."""
    measure = Measure("KL", 0.12345, 0.067, 0.89, 4321, "nats/token", "says so")
    texts = Page(render(Analysis("m", (Section("s", "t", (measure,)),), "r", "v"))).texts
    assert {"KL", "0.123 nats/token", "0.067", "0.89", "4,321", "says so"} <= {text.strip() for text in texts}


def test_bars_end_at_their_values() -> None:
    """A bar is as long as its value, its chance mark and ceiling mark stand where they should (axis from 0 to 1)."""
    measures = (Measure("rsa E→T", 0.25, 0.1, 0.5), Measure("rsa U→T", 0.5, 0.1, 1.0))
    (plot,) = plots(Section("alignment", "", measures))
    bars = re.findall(r'<rect class="bar c(\d)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', plot.drawing)
    (_, start, short), (_, _, long) = bars
    assert float(long) == pytest.approx(2 * float(short), abs=0.11)
    ceilings = [float(x) for x in re.findall(r'class="ceiling" d="M([\d.]+)', plot.drawing)]
    assert ceilings[0] == pytest.approx(float(start) + float(long), abs=0.11)
    assert ceilings[1] == pytest.approx(float(start) + 2 * float(long), abs=0.21)


def test_a_ceiling_below_chance_is_none() -> None:
    """Two seeds that agree by less than chance (their rows as stored, say) set no limit that a bar could pass."""
    (plot,) = plots(Section("alignment", "", (Measure("identity U→T", 0.03, 0.001, -0.03),)))
    assert 'class="floor"' in plot.drawing and 'class="ceiling"' not in plot.drawing


def test_row_map_counts_equal_rows() -> None:
    """Equal rows are grey, all others coloured, and the sentence counts them."""
    (plot,) = plots(Section("relation", "", (), {"row_difference": (0.0, 0.0, 1.0, 2.0)}))
    assert plot.drawing.count("z") == 4 and "2 of 4 rows" in plot.says
    (same,) = plots(Section("relation", "", (), {"row_difference": (0.0, 0.0)}))
    assert "tieconv retie" in same.says and 'class="cell q' not in same.drawing


def test_bias_line_is_the_least_squares_line() -> None:
    """bias = 2·log p - 1 gives slope 2."""
    log_p = (-5.0, -4.0, -1.0)
    (plot,) = plots(Section("bias", "", (), {"log_p": log_p, "bias_at_log_p": tuple(2 * x - 1 for x in log_p)}))
    assert "2 × log p" in plot.says and "The line explains 100% of" in plot.says


def test_a_bias_off_the_line_does_not_follow_it() -> None:
    """Noise has a best line too: the sentence says how little it explains, and claims no word frequency."""
    log_p, noise = (-4.0, -3.0, -2.0, -1.0), (1.0, -1.0, -1.0, 1.1)
    (plot,) = plots(Section("bias", "", (), {"log_p": log_p, "bias_at_log_p": noise}))
    assert plot.says.startswith("The line explains 0% of") and "follows" not in plot.says


@pytest.mark.parametrize(("value", "told"), [(1.0, "1 row"), (2.0, "2 rows"), (0.0, "0 rows")])
def test_one_row_is_a_row(value: float, told: str) -> None:
    """On the page as in the text."""
    analysis = Analysis("m", (Section("s", "t", (Measure("zero", value, unit="rows"),)),), "r", "v")
    assert f">{told}<" in render(analysis)
    assert plain_text(analysis).splitlines()[-1].split("  ")[-1].strip() == told


def test_what_is_not_known_is_said() -> None:
    """A refused figure is *not given*, as in the text; floors and ceilings that are not there leave no label behind."""
    page = render(Analysis("m", (Section("s", "t", (Measure("KL", None, says="no reason"),)),), "r", "v"))
    assert '<td data-of="value">not given</td>' in page
    assert 'data-of="floor"' not in page and 'data-of="n"' not in page


def test_a_map_has_a_switch_for_each_colour() -> None:
    """Two colours: two radio buttons of one group, the first chosen, each with its drawing and ramp; one: none."""
    points = {"plane_x": (0.0, 1.0), "plane_y": (0.0, 1.0)}
    one = Section("map", "", (), points | {"plane_colour row norm": (1.0, 2.0)})
    two = Section("map", "", (), points | {"plane_colour frequency": (3.0, 4.0), "plane_colour row norm": (1.0, 2.0)})
    assert "input" not in {tag for tag, _ in harmless(render(Analysis("m", (one,), "r", "v"))).elements}
    moved = Section("map", "", (), {**two.series, "plane_x": (0.5, 1.0)})
    assert render(Analysis("m", (two, two), "r", "v")).count("<svg") == 2  # a drawing is shown once
    page = harmless(render(Analysis("m", (two, moved), "r", "v")))
    buttons = [attributes for tag, attributes in page.elements if tag == "input"]
    assert [("checked" in button) for button in buttons] == [True, False, True, False]
    assert len({button["id"] for button in buttons}) == 4 and len({button["name"] for button in buttons}) == 2
    labels = [attributes["for"] for tag, attributes in page.elements if tag == "label"]
    assert labels == [button["id"] for button in buttons]
    assert sum(tag == "svg" for tag, _ in page.elements) == 4


def test_few_rows_that_differ_keep_their_colour() -> None:
    """Where nearly all values are equal the others still have the strongest colour."""
    count = 1000
    values = (*([0.0] * (count - 1)), 5.0)
    points = {"plane_x": tuple(range(count)), "plane_y": tuple(range(count)), "plane_colour difference": values}
    (plot,) = plots(Section("map", "", (), points))
    assert 'class="dots q6"' in plot.drawing and plot.ramp == ("difference: 0", "5")


def test_frame_places_corners() -> None:
    """The lowest point is at the bottom left of the plot, the highest at the top right; all between evenly."""
    frame = Frame("f", (0, 10), (1, 100))
    left, bottom = frame.pixel((0, 1))
    right, top = frame.pixel((10, 100))
    assert left < right and bottom > top
    assert frame.pixel((5, 50.5)) == pytest.approx(((left + right) / 2, (bottom + top) / 2))


@pytest.mark.parametrize("span", [(0, 1), (-3, 7), (1e-9, 2e-9), (-1e120, 1e120), (0.1, 0.10001)])
def test_ticks(span: tuple[float, float]) -> None:
    """Between two and eight round numbers within the span."""
    found = ticks(span)
    assert 2 <= len(found) <= 8
    assert all(isfinite(value) and span[0] - 1e-6 * abs(span[0]) <= value <= span[1] * (1 + 1e-6) for value, _ in found)


def test_figures() -> None:
    """Three digits, a true minus, and words for what is no number."""
    shown = {None: "–", 0.12345: "0.123", -2.0: "−2", 1234567.0: "1,234,567", inf: "∞", nan: "undefined"}
    assert [figure(x) for x in shown] == [*shown.values()]


def test_steps_cover_their_range() -> None:
    """The lowest value has the first colour, the highest the last, and what is outside is cut."""
    assert [step_of(x, 0, 1) for x in (-1, 0, 0.999, 1, 2)] == [0, 0, 6, 6, 6]


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast(scheme: int) -> None:
    """Text reaches WCAG's 4.5 on both backgrounds and series 3 on cards, in both colour schemes."""
    found = dict(re.findall(r"--([\w]+):(#\w+)", STYLE.split("prefers-color-scheme:dark")[scheme]))
    for ink in ("ink", "soft", "accent"):
        assert min(_contrast(found[ink], found[ground]) for ground in ("page", "card")) >= 4.5, ink
    for series in ("c1", "c2", "c3", "c4", "mark"):
        assert _contrast(found[series], found["card"]) >= 3, series
    assert _contrast(found["c0"], found["card"]) >= 2.5
    assert log10(_contrast(found["q0"], found["q6"])) > 0.5
    assert min(_contrast(found[f"q{step}"], found["card"]) for step in range(7)) >= 1.7
