"""The first line of `analyze`: what was asked, the answer, and how sure it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.run import ok
from tests.reporters.analyses import full
from tieconv import analyze
from tieconv.analysis.alignment import Contest, certainty, verdict
from tieconv.checkpoint.results.analysis import MAY_BE_TIED
from tieconv.reporters.html.analyze_page import render_analysis as render

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
ANSWERS = {
    "llama-duplicated": ("Yes, nothing is lost. ", "proved by comparing every byte"),
    "llama-tied": ("The model is tied. Nothing to re-tie.", "certain, because the model stores one table"),
    "llama-untied": ("No: the tables are independent", "measured on every row, but nearest rows on 48 sampled rows"),
    "llama-diverged": ("The weights alone do not decide. ", ""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_headline_answers_whether_the_model_may_be_tied(name: str) -> None:
    """The first line of the screen, the JSON and the page say the same."""
    answer, sure = ANSWERS[name]
    model = str(MODELS / name)
    first, second = ok("analyze", model).stdout.splitlines()[:2]
    ending = f" How sure: {sure}." if sure else ""
    assert first.startswith(f"{model}: {MAY_BE_TIED} {answer}") and first.endswith(ending)
    headline = json.loads(ok("analyze --json", model).stdout)["headline"]
    assert first == f"{model}: {headline['question']} {headline['answer']}{ending}"
    assert headline["certainty"] == sure and ("How sure" in first) is bool(sure)
    assert second == f"Relation of the two tables: {analyze(model).relation}"


def test_the_question_of_another_model_is_answered_first() -> None:
    """With `--against` the headline says which table the tied one is like, not whether a tied model may be tied."""
    tied, untied = MODELS / "llama-tied", MODELS / "llama-untied"
    first = ok("analyze", tied, "--against", untied).stdout.splitlines()[0]
    question = f"Which table of {untied} does the tied table resemble?"
    assert first.startswith(f"{tied}: {question} The tied table is input-shaped. ")
    assert first.endswith(" How sure: all 3 measures agree, each by more than 3 standard errors.")
    document = json.loads(ok("analyze --json", tied, "--against", untied).stdout)
    assert document["verdict"] == "The model is tied. Nothing to re-tie."
    assert document["headline"]["answer"] == document["sections"][-1]["sentence"]


def test_nothing_is_said_twice() -> None:
    """The answer of the headline has no section of its own, and a reason in a sentence no rows that repeat it."""
    untied = MODELS / "llama-untied"
    text, document = ok("analyze", untied).stdout, json.loads(ok("analyze --json", untied).stdout)
    assert text.count(document["verdict"]) == 1 and "Re-tying" not in text
    assert text.count("has no tokenizer.json") == 1
    missing = [measure for section in document["sections"] for measure in section["measures"] if not measure["n"]]
    assert any("no tokenizer.json" in str(measure) for measure in missing)


def contest(head: float, embedding: float) -> Contest:
    return Contest("knn", (embedding, 0.0, 0.01, None), (head, 0.0, 0.01, None))


def test_how_sure_an_alignment_is() -> None:
    """Votes that agree, that are too few, and that contradict each other."""
    votes = [contest(0.9, 0.1), contest(0.9, 0.1), contest(0.5, 0.5)]
    assert certainty(verdict(votes)[0], votes) == (
        "2 of 3 measures agree, each by more than 3 standard errors, and none contradicts"
    )
    mixed = [contest(0.9, 0.1), contest(0.1, 0.9), contest(0.5, 0.5)]
    assert verdict(mixed)[0] == "mixed" and certainty("mixed", mixed) == ""


def test_the_page_asks_answers_and_says_how_sure(tmp_path: Path) -> None:
    """In this order, before anything else; an analysis without a certainty has no empty sentence."""
    text = re.sub(r"<[^>]+>", "\n", render(analyze(MODELS / "llama-duplicated"))).split("Relation of the two")[0]
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[-3] == MAY_BE_TIED and lines[-2].startswith("Yes, nothing is lost")
    assert lines[-1] == "How sure: proved by comparing every byte."
    assert "How sure" not in render(full())
