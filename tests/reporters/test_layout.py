"""Lines and columns on a terminal, and plots of parity: what is drawn stands where its numbers say."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
from hypothesis import example, given, strategies as st

from tests.reporters.rendered import FOLDER, documents, drawn, parity_report
from tieconv.checkpoint.results.parity import Case, Figures, Gate, Histogram, Identity, Parity, ProviderUse, Verdict
from tieconv.reporters.html.parity_page import error_plot, gate_bar, render
from tieconv.reporters.text import columns, wrapped
from tieconv.reporters.text.analyze_text import _short_figure
from tieconv.reporters.text.parity_text import render_parity

DOCUMENTS = documents()
WORDS = st.lists(st.text("abc.", min_size=1, max_size=30), max_size=20).map(" ".join)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_the_recorded_one(name: str) -> None:
    """Every word, number and place: ``python -m tests.reporters.rendered`` writes what is meant to change."""
    assert drawn(DOCUMENTS[name]) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_no_record_is_left_over() -> None:
    """Each file is that of a document."""
    assert {path.stem for path in FOLDER.iterdir()} == set(DOCUMENTS)


def test_a_report_without_a_compared_case_claims_no_sensitivity() -> None:
    """No case ran, so no fault was looked for. A report that passed has one sentence, on the page too."""
    report = parity_report(Verdict.PASSED)
    assert "sees" in render_parity(report) and "losses are within the limits" in render(report)
    broken = tuple(replace(case, graph=None, floor=None, error="no kernel") for case in report.cases)
    assert "a fault that changes" not in render_parity(replace(report, cases=broken)) + render(
        replace(report, cases=broken)
    )
    assert "and its errors are within the limits." in render(replace(report, quantised=None))


def test_text_goes_below_a_lead_that_leaves_no_room() -> None:
    """Beside a long name a sentence would be a ribbon; under 24 columns it stands below, a little further in."""
    lead = f"  {'name' * 15}  "
    assert wrapped("absent, takes the tied values", lead, 80) == [lead.rstrip(), "      absent, takes the tied values"]
    assert wrapped("a b", lead, 80) == [f"{lead}a b"]
    assert wrapped("absent, takes the tied values", lead, None) == [f"{lead}absent, takes the tied values"]


def test_a_long_word_goes_below_too() -> None:
    """A name that fits into the terminal is not broken by its edge."""
    name, lead = "model.language_model.embed_tokens.weight", "  " + "lead" * 10
    assert wrapped(f"loads as {name}", lead, 80) == [lead, f"      loads as {name}"]
    beside = wrapped(f"loads as {name}", lead, len(lead) + len(name))
    assert beside == [f"{lead}loads as", f"{' ' * len(lead)}{name}"]


@example([("a" * 10, "a" * 27)], 40)
@given(st.lists(st.tuples(st.text("ab", max_size=40), WORDS), min_size=1), st.integers(40, 140))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str]], width: int) -> None:
    """Except by one word, alone beside its lead; and no word is lost."""
    lines = columns(rows, width=width)
    lead = 4 + max(len(row[0]) for row in rows)
    assert all(len(line) <= max(width, lead, 2 + 4 + 30) or len(line.split()) <= 2 for line in lines)
    assert " ".join(lines).split() == " ".join(f"{one} {other}" for one, other in rows).split()


def test_colours_take_no_columns() -> None:
    """A painted cell is as wide as it looks."""
    painted = [("\x1b[32mpassed\x1b[0m", "1"), ("failed by far", "2")]
    bare = [re.sub(r"\x1b\[\d+m", "", line) for line in columns(painted)]
    assert bare == columns([("passed", "1"), ("failed by far", "2")])


def test_a_sentence_stays_on_the_line_of_a_short_lead() -> None:
    """`error:` never stands alone because of a long path behind it."""
    path = "/a" * 50
    assert wrapped(f"{path} cannot be opened", "error: ", 80)[0] == f"error: {path}"


def test_colours_break_no_line_early() -> None:
    """A painted title fills the line as a plain one does."""
    assert wrapped("\x1b[1mmodel\x1b[0m: a b c", "", 30) == ["\x1b[1mmodel\x1b[0m: a b c"]
    assert wrapped("\x1b[1mmodel\x1b[0m: " + "ab " * 20, "", 40)[0].count("ab") == (40 - 6) // 3


def test_figures_of_a_table() -> None:
    """Three decimals where they say something; whole numbers in full, and other numbers with three digits."""
    texts = {0: "0", 0.0005: "0.001", 0.0004999: "0.0005", -0.25: "-0.250", 999.9994: "999.999", 1000: "1,000",
             1000.5: "1e+03", 1e20: "1e+20"}  # fmt: skip
    assert {value: _short_figure(value) for value in texts} == texts


LEFT, RIGHT, TOP, BOTTOM = 52.0, 388.0, 10.0, 168.0


def counts(bins: int, first: int, last: int) -> tuple[int, ...]:
    """A triangle over some of the bins, with its largest number in their middle."""
    return tuple(1 + min(i - first, last - i) if first <= i <= last else 0 for i in range(bins))


def histogram(start: float, first: int, last: int, bins: int = 80) -> Histogram:
    return Histogram("fp32", start, 0.25, counts(bins, first, last), counts(bins, first + 1, last))


def figures(rms: float, positions: int = 4) -> Figures:
    return Figures(positions, rms, rms, rms, 0, 0.0, 0.0)


def case(graph: float, floor: float) -> Case:
    return Case("fp32", 1, 4, 0, 0, 0, figures(graph), figures(floor), None, None)


def plot(drawn: Histogram, cases: list[Case]) -> str:
    return error_plot(drawn, cases).drawing


def labels(drawn: str) -> dict[int, float]:
    """The powers of ten of the axis and where they stand."""
    found = re.findall(r'x="([\d.]+)" y="183" text-anchor="\w+">10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)<', drawn)
    return {int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))): float(x) for x, power in found}


def test_each_decade_has_its_label() -> None:
    """Bins 5 to 20 of a quarter decade, with one more on each side: from 10^-7 to 10^-3."""
    found = labels(plot(histogram(-8.0, 5, 20), []))
    assert list(found) == [-7, -6, -5, -4, -3]
    step = (RIGHT - LEFT) / 18  # bins 4 to 22
    assert found == {power: pytest.approx(LEFT + step * 4 * (power + 7), abs=0.06) for power in range(-7, -2)}


def test_many_decades_have_some_labels() -> None:
    """At most seven, at equal distances."""
    found = list(labels(plot(histogram(-20.0, 1, 78), [])))
    assert 4 <= len(found) <= 7
    assert len({b - a for a, b in itertools.pairwise(found)}) == 1


def test_a_lone_zero_does_not_stretch_the_axis() -> None:
    """Bin 0 holds the exact zeros."""
    plain = histogram(-8.0, 5, 20)
    zeros = Histogram("fp32", -8.0, 0.25, (9, *plain.graph[1:]), plain.floor)
    assert labels(plot(zeros, [])) == labels(plot(plain, []))


def test_both_distributions_fill_the_height() -> None:
    """The larger peak reaches the top, both stand on the axis, and bins follow each other."""
    drawn = plot(histogram(-8.0, 5, 20), [])
    paths = re.findall(r'<path class="(?:band|line) c\d" d="(M[^"]*)"', drawn)
    points = [[tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)] for path in paths]
    assert len(points) == 2
    assert min(y for path in points for _, y in path) == TOP
    band, line = points
    assert band[:2] == [(LEFT, BOTTOM), (RIGHT, BOTTOM)]
    for path in (band[:1:-1], line):
        assert (path[0][0], path[-1][0]) == (LEFT, RIGHT)
        assert [x for x, _ in path] == sorted(x for x, _ in path)
        assert max(y for _, y in path) == BOTTOM
    assert [path.endswith("Z") for path in paths] == [True, False]


def marks(drawn: str) -> dict[str, float]:
    """The vertical lines by their kind."""
    found = re.findall(rf'<path class="(floor|ceiling)" d="M([\d.]+) {TOP:.0f}V{BOTTOM}"/>', drawn)
    return {kind: float(x) for kind, x in found}


@pytest.mark.parametrize("rms", [1e-6, 10**-3.5])
def test_marks_stand_at_their_errors(rms: float) -> None:
    """The gate at twice the RMS error of torch, and the graph's own."""
    step = (RIGHT - LEFT) / 18
    expected = {
        kind: pytest.approx(LEFT + step * ((math.log10(value) + 8) / 0.25 - 4), abs=0.06)
        for kind, value in (("ceiling", rms), ("floor", 2 * rms))
    }
    assert marks(plot(histogram(-8.0, 5, 20), [case(rms, rms), case(rms, rms)])) == expected


def test_an_error_beyond_the_axis_stands_at_its_end() -> None:
    """A graph that is far off is marked at the right edge; nothing is drawn of no error at all."""
    assert marks(plot(histogram(-8.0, 5, 20), [case(10.0, 1e-6)]))["ceiling"] == RIGHT
    assert marks(plot(histogram(-8.0, 5, 20), [case(0.0, 0.0)])) == {}


def test_larger_batches_weigh_more() -> None:
    """The RMS error of all positions together."""
    few = Case("fp32", 1, 1, 0, 0, 0, figures(3e-6, positions=1), None, None, None)
    many = Case("fp32", 1, 3, 0, 0, 0, figures(1e-6, positions=3), None, None, None)
    line = marks(plot(histogram(-8.0, 5, 20), [few, many]))["ceiling"]
    expected = (math.log10(math.sqrt((9e-12 + 3e-12) / 4)) + 8) / 0.25 - 4
    assert line == pytest.approx(LEFT + (RIGHT - LEFT) / 18 * expected, abs=0.06)


@pytest.mark.parametrize(
    ("value", "limit", "width", "colour"),
    [(0.5, 1.0, "50.0", "c2"), (3.0, 2.0, "150.0", "c4"), (9.0, 1.0, "150.0", "c4"), (math.inf, 1.0, "150.0", "c4")],
)
def test_a_bar_ends_at_the_share_of_its_limit(value: float, limit: float, width: str, colour: str) -> None:
    """What is beyond one and a half times the limit is drawn there."""
    drawn = gate_bar(Gate("rms", value, limit, value <= limit, ""))
    assert f'width="{width}" height="6" fill="var(--{colour})"' in drawn


@pytest.mark.parametrize(("value", "limit"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_no_ratio_no_bar(value: float | None, limit: float | None) -> None:
    """A condition without a limit is no share of anything."""
    assert gate_bar(Gate("rms", value, limit, False, "")) == ""


def test_a_failed_page_says_what_was_not_measured() -> None:
    """A fault of the structure ends the measurement before any logit."""
    gates = (Gate("structure", 1.0, 0.0, False, "an axis is fixed"),)
    page = render(Parity(Verdict.FAILED, "g.onnx", "m", ProviderUse("cpu"), gates=gates))
    assert "<h2>Not measured</h2>\n<p>Not compared: the weights and the logits.</p>" in page
    measured = Parity(Verdict.FAILED, "g.onnx", "m", ProviderUse("cpu"), gates=gates, cases=(case(1e-6, 1e-6),))
    assert "Not compared: the weights.</p>" in render(measured)


@pytest.mark.parametrize(("found", "asks"), [(40, True), (60, False)])
def test_a_graph_of_another_model_is_asked_about(found: int, asks: bool) -> None:
    """Where most weights are not in the graph, the first suspect is the model beside it."""
    gates = (Gate("weights", 1.0, 0.0, False, "a matrix is not in the graph"),)
    identity = Identity(2, 1, 100, found, {}, (), (), (), 1)
    text = render_parity(Parity(Verdict.FAILED, "g.onnx", "m", ProviderUse("cpu"), gates=gates, identity=identity))
    assert text.endswith("Was it exported from this model?") == asks
