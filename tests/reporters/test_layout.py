"""Lines and columns on a terminal: what is wider than it, and what a colour takes."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from tieconv.reporters.text import columns, wrapped
from tieconv.reporters.text.analyze_text import _short_figure

WORDS = st.lists(st.text("abc.", min_size=1, max_size=30), max_size=20).map(" ".join)


def test_text_goes_below_a_lead_that_leaves_no_room() -> None:
    """Beside a long name a sentence would be a ribbon; under 24 columns it stands below, a little further in."""
    lead = f"  {'name' * 15}  "
    assert wrapped("absent, takes the tied values", lead, 80) == [lead.rstrip(), "      absent, takes the tied values"]
    assert wrapped("a b", lead, 80) == [f"{lead}a b"]
    assert wrapped("absent, takes the tied values", lead, None) == [f"{lead}absent, takes the tied values"]


def test_a_long_word_goes_below_too() -> None:
    """A name that fits into the terminal is not broken by its edge."""
    name = "model.language_model.embed_tokens.weight"
    assert wrapped(f"loads as {name}", " " * 2 + "lead" * 10, 80) == ["  " + "lead" * 10, f"      loads as {name}"]


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
