"""`tieconv rules` and `tieconv explain`: the documentation of the rules at the prompt."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.run import ok, refused, run
from tieconv.checks.registry import RULES


def test_every_rule_has_a_line() -> None:
    """Code, level, name and the first sentence, in the order of the documentation."""
    lines = ok("rules").stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [[rule.code, str(rule.level), rule.name] for rule in RULES]
    assert all(rule.documentation.splitlines()[0].rstrip(".") in line for rule, line in zip(RULES, lines, strict=True))


def test_json_and_selection() -> None:
    """One document; --select takes what check takes."""
    document = json.loads(ok("rules --json --select TIE001,BIA").stdout)
    assert document["schema"] == "tieconv.rules/1"
    assert [rule["code"] for rule in document["rules"]] == ["TIE001", "BIA001", "BIA002", "BIA003", "BIA004"]
    assert all(set(rule) == {"code", "name", "level", "summary", "documentation"} for rule in document["rules"])
    assert "TIE77 is not a rule" in refused("rules --select TIE77")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_explain_prints_the_documentation(rule) -> None:
    """By code or name; in a pipe the text is as it is written, without numbers that only the pages resolve."""
    by_code, by_name = ok("explain", rule.code), ok("explain", rule.name)
    assert by_code.stdout == by_name.stdout
    assert by_code.stdout == f"{rule.code} {rule.name} (usually: {rule.level})\n\n{rule.help_text.strip()}\n"
    assert not re.search(r"\bC\d\d\b", by_code.stdout)


def test_explain_fills_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal paragraphs are filled to its width and quoted output is left alone."""
    monkeypatch.setattr("tieconv.cli.commands.explain.width", lambda: 60)
    text = ok("explain TIE001").stdout
    paragraphs = [line for line in text.splitlines() if not line.startswith("    ")]
    assert max(map(len, paragraphs)) <= 60 and "## " not in text and "How to fix" in text
    assert sorted(text.split()) == sorted(ok_plain().replace("## ", "").split())


def ok_plain() -> str:
    """The documentation of the rule that the test above fills."""
    return f"TIE001 {RULES[0].name} (usually: {RULES[0].level}) {RULES[0].help_text}"


def test_an_unknown_rule_is_answered_with_what_is_near() -> None:
    """Exit 2."""
    result = run("explain TIE0001")
    assert result.exit_code == 2 and "did you mean TIE001 (different-values)" in result.stderr
    assert "\x1b" not in run("explain", "\x1b[31mx").stderr
