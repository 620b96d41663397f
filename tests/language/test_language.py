"""The lint over the project's texts finds what it says, and the finished texts keep its rules."""

import pytest

from tests.language.__main__ import RECORDED, faults, main
from tests.language.texts import (
    ALLOWED,
    GONE,
    LONGEST,
    Text,
    all_texts,
    answer_texts,
    broken,
    code_texts,
    page_texts,
    sentences,
)

MODULE = '''"""The first docstring of all."""

# A comment of two
# lines in all.
LIMIT = 3  # a comment after code
"""What an attribute is for."""


def speak(name):
    """Return a long and useful sentence."""
    raise ValueError(f"the file {name} has no head" " and no embedding")
'''


def kinds(texts):
    return [(text.kind, text.line, text.words) for text in texts]


def test_every_text_of_a_module_is_read_once():
    assert kinds(code_texts(MODULE, "m.py")) == [
        ("docstring", 1, "The first docstring of all."),
        ("docstring", 6, "What an attribute is for."),
        ("docstring", 10, "Return a long and useful sentence."),
        ("message", 11, "the file `x` has no head and no embedding"),
        ("comment", 3, "A comment of two lines in all."),
        ("comment", 5, "a comment after code"),
    ]


def test_a_page_is_read_without_its_code():
    page = "# The title here\n\nOne two three\nfour.\n\n```bash\nnot this one\n```\n\n- an item\n- another item\n"
    page += "\n| first cell | second cell |\n|---|---|\n| third cell | x |\n\n<!-- hidden words here -->\n"
    page += "\n::: tieconv.api.check\n    options:\n      members: [one, two, three]\n\nFive six seven.\n"
    assert kinds(page_texts(page, "p.md")) == [
        ("page", 1, "The title here"),
        ("page", 3, "One two three\nfour."),
        ("page", 10, "an item"),
        ("page", 11, "another item"),
        ("page", 13, "first cell"),
        ("page", 13, "second cell"),
        ("page", 15, "third cell"),
        ("page", 23, "Five six seven."),
    ]


def test_a_finding_is_read_once():
    answers = {"a": [{"message": "one two three", "rule": "x"}], "b": {"c": [{"message": "one two three"}]}}
    assert kinds(answer_texts(answers, "a.json")) == [("message", 1, "one two three")]


def test_sentences_end_where_a_reader_pauses():
    words = "One (see [a page](x.md)). `Two` is here! tieconv reads `a`,\n`b`, `c`. Version 4.57 stays whole."
    words += "\n- an item\n- another"
    assert list(sentences(words)) == [
        "One (see a page).",
        "`x` is here!",
        "tieconv reads `x`.",
        "Version 4.57 stays whole.",
        "- an item",
        "- another",
    ]


@pytest.mark.parametrize("length", [LONGEST, LONGEST + 1])
def test_a_long_sentence_is_a_fault(length):
    text = Text("page", "p.md", 1, "Word " + "word " * (length - 2) + "end. Short.")
    assert len(list(broken(text))) == (length > LONGEST)


@pytest.mark.parametrize(
    "words",
    [
        "Baseline entries that no longer occur are told.",
        "The tables stand apart.",
        "vLLM goes by the flag.",
        "The head has a table of its own.",
        "inspct is no command.",
        "a link that leads outside",
        "This reading is wrong.",
    ],
)
def test_a_gone_word_is_a_fault(words):
    assert list(broken(Text("message", "m.py", 1, words)))


@pytest.mark.parametrize(
    "words",
    ["There is no head.", "The file is no longer there.", "It is plain text.", "`told` is a name.", "a reading order"],
)
def test_an_ordinary_word_is_not_a_fault(words):
    assert not list(broken(Text("message", "m.py", 1, words)))


def test_each_allowed_text_occurs_and_has_a_reason():
    words = " ".join(sentence for text in all_texts() for sentence in sentences(text.words))
    assert all(reason and allowed in words for allowed, reason in ALLOWED.items())
    assert GONE


def test_recorded_pages_are_left_out_unless_they_are_named():
    for page in RECORDED:
        assert faults((page,)), "it keeps the rules: take it out of RECORDED"


def test_the_exit_code_says_whether_there_are_faults(capsys, monkeypatch):
    text = Text("page", "docs/p.md", 3, "The tables stand apart.")
    monkeypatch.setattr("tests.language.__main__.all_texts", lambda: iter([text]))
    assert main(["docs"]) == 1
    assert capsys.readouterr().out.startswith("docs/p.md:3: page: ")
    assert main(["docs", "--count"]) == 1
    assert main(["tieconv"]) == 0
