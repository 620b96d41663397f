"""The one escaper: whatever a file holds, what is printed is harmless."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import example, given, settings, strategies as st

from fixtures.hostile import HOSTILE_NAMES
from tests.hostile.conftest import faults_of_text
from tests.patience import examples
from tieconv.text import json_value, shell_word, shown

# Default_Ignorable_Code_Point of Unicode, beside what is Cc, Cf, Cs, Zl or Zp anyway.
IGNORABLE = [
    0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, *range(0xFE00, 0xFE10), 0xFFA0,
    *range(0xE0100, 0xE01F0),
]  # fmt: skip
FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
anything = st.text(st.characters(), max_size=300)  # surrogates included: file names hold them
nasty = st.text(
    st.sampled_from([":", "#", "[", " ", "\t", "\n", "\u200b", "\x1b", "v", "s", "o", "%", "\ud800", "a"]), max_size=12
)


@given(anything | nasty)
@example("  ::error::x")
@example("\t::error")
@example("\u3000::error")
@example("##vso[task.complete]")
@example("#" * 300 + "[")
@settings(max_examples=examples(1000), deadline=None)
def test_harmless(text: str) -> None:
    safe = shown(text)
    assert safe.isprintable()
    assert not any(unicodedata.category(character) in FORBIDDEN or ord(character) in IGNORABLE for character in safe)
    assert faults_of_text(safe) == faults_of_text(f"   {safe}") == []
    safe.encode("utf-8")


def test_the_usual_length() -> None:
    assert shown("a" * 200) == "a" * 200 and shown("a" * 201) == "a" * 199 + "…"


@given(st.text(st.characters(), max_size=3000), st.integers(1, 300))
@settings(max_examples=examples(200), deadline=None)
def test_length(text: str, limit: int) -> None:
    """An escape takes ten characters at most."""
    assert len(shown(text, limit)) <= 10 * limit + 3
    if len(text) > limit:
        assert shown(text, limit).endswith("…")


@given(
    st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=100).filter(
        lambda text: ":" not in text and "#" not in text
    )
)
@settings(max_examples=examples(200), deadline=None)
def test_ordinary_text_stays(text: str) -> None:
    if not any(ord(character) in IGNORABLE or character in "\u2800" for character in text):
        assert shown(text) == text


@pytest.mark.parametrize(
    "text", ["model.layers.0.weight", "a::b", "a: b", "# title", "##", "日本語", "é", "emoji 😀", "1:2::3"]
)
def test_names_of_real_models_stay(text: str) -> None:
    assert shown(text) == text


def test_values_of_a_config_are_json() -> None:
    """As config.json stores them: no tuple and no quotes of Python."""
    for value, text in (
        ((), "[]"),
        (("lm_head", 1), '["lm_head", 1]'),
        ({"a": None, "b": [True, ("c",)]}, '{"a": null, "b": [true, ["c"]]}'),
        ("lm_head", "lm_head"),
        ("true", '"true"'),
    ):
        assert json_value(value) == text
    assert json_value(["\u202e"]) == '["\\u202e"]'


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names(name: str) -> None:
    assert faults_of_text(shown(HOSTILE_NAMES[name])) == []


def test_every_character() -> None:
    for point in range(sys.maxunicode + 1):
        safe = shown(chr(point))
        assert safe == chr(point) or safe.isascii()
        assert safe.isprintable()
        if unicodedata.category(chr(point)) in FORBIDDEN or point in IGNORABLE:
            assert safe.startswith("\\")


def test_values_that_are_no_text() -> None:
    assert shown(None) == "None"
    assert shown([1, "\x1b"]) == "[1, '\\x1b']"
    assert shown({"a": True}) == "{'a': True}"


@given(anything | nasty)
@settings(max_examples=examples(300), deadline=None)
def test_a_word_of_a_command_is_harmless(text: str) -> None:
    word = shell_word(text)
    assert word.isprintable()
    assert faults_of_text(f"next: tieconv inspect {word}") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_word_of_a_command_reaches_the_program() -> None:
    """Whatever the name, a shell that is given the word passes the name on, and runs nothing of it."""
    texts = [name for name in HOSTILE_NAMES.values() if "\0" not in name and len(name) < 1000]
    texts += ["é\x1b", "\udcff\n", "'$(id)'\n`id`", "a'b", "\\n\t", "##[x]", "::x", "~", "*\x07", "-n"]
    script = "\n".join(f"printf '%s\\0' x{shell_word(text)}" for text in texts)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.split(b"\0")[:-1] == [b"x" + os.fsencode(text) for text in texts]
