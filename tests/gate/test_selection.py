"""Which rules count: the longest selector that covers a rule decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tieconv
from tieconv.checks.registry import RULES
from tieconv.errors import SettingsError
from tieconv.gate.settings import ALL, Selection, find_rule, selectors

CODES = [rule.code for rule in RULES]
WORDS = st.sampled_from(sorted({code[:length] for code in CODES for length in range(1, 7)} | {ALL}))
SELECTORS = st.lists(WORDS, max_size=4).map(tuple)


def specificity(words: tuple[str, ...], code: str) -> int:
    """An oracle: the length of the longest word that covers the code, -1 where none does."""
    return max((0 if word == ALL else len(word) for word in words if word == ALL or code.startswith(word)), default=-1)


@given(SELECTORS, SELECTORS, st.sampled_from(CODES))
def test_the_longest_selector_decides(select: tuple[str, ...], ignore: tuple[str, ...], code: str) -> None:
    """A rule runs where something selects it, and counts where nothing as long ignores it."""
    selection = Selection(select, ignore)
    assert selection.runs(code) == (specificity(select, code) >= 0)
    counts = selection.runs(code) and selection.ignored_by(code) is None
    assert counts == (specificity(select, code) > specificity(ignore, code))


@given(SELECTORS, SELECTORS, st.sampled_from(CODES), st.randoms())
def test_order_and_repetition_do_not_count(select, ignore, code, random) -> None:
    """A selection is a set."""
    shuffled = [*select, *select]
    random.shuffle(shuffled)
    selection, same_codes = Selection(select, ignore), Selection(tuple(shuffled), (*ignore, *ignore))
    assert (selection.runs(code), selection.ignored_by(code)) == (same_codes.runs(code), same_codes.ignored_by(code))


def test_commas_repetition_and_case() -> None:
    """`--select tie001,STO --select ALL` is three selectors."""
    assert selectors(["tie001, STO", "all"], "--select") == ("TIE001", "STO", "ALL")


@pytest.mark.parametrize("word", ["TIE099", "TIE0011", "", "TIE001,", "missing-heads", "*", "\x1b[31m", "T" * 5000])
def test_a_word_that_covers_no_rule_is_refused(word: str) -> None:
    """A typo in a gate must not switch it off; the error is one short line that shows what was meant."""
    with pytest.raises(SettingsError) as caught:
        selectors([word], "--select")
    assert caught.value.message.startswith("--select: ") and caught.value.hint
    assert caught.value.message.isprintable() and len(caught.value.message) < 120


def test_near_matches_by_code_and_name() -> None:
    """A rule is found by its code or name, whatever the case; a typo is answered with what it is near to."""
    assert find_rule("tie003").code == find_rule("Missing-Head").code == "TIE003"
    with pytest.raises(SettingsError) as caught:
        find_rule("missing-haed")
    assert "TIE003 (missing-head)" in caught.value.hint
    with pytest.raises(SettingsError) as caught:
        find_rule("zzzzzzz")
    assert caught.value.hint == "list all rules with: tieconv rules"
    assert selectors("TIE002", "select") == selectors(["tie002"], "select") == ("TIE002",)
    with pytest.raises(SettingsError, match="look at the files: tieconv inspect MODEL;"):
        find_rule("KeyError: 'lm_head.weight'")


def test_python_names_the_argument() -> None:
    """Not the option of the command."""
    for argument in ("select", "ignore"):
        with pytest.raises(SettingsError, match=f"^{argument}: TIE9 is not a rule"):
            tieconv.check([], **{argument: ["TIE9"]})


def test_a_name_selects_its_rule() -> None:
    """As `explain` takes it; a part of a name selects nothing."""
    assert selectors("redundant-copy,TIE001", "--ignore") == ("TIE002", "TIE001")
    with pytest.raises(SettingsError, match="did you mean TIE002"):
        selectors("redundant", "--ignore")
