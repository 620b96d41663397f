"""`tieconv.toml` and `[tool.tieconv]`: each key does what it says, anything else is told with key and file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.run import refused
from tests.patience import prompt
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.errors import SettingsError
from tieconv.gate.settings import ModelIgnore, Settings, parse_settings

FULL = """
select = ["TIE", "STO001"]
ignore = ["TIE004"]
fail-on = "error"
for = "vllm"
depth = "header"
baseline = "debt.json"

[[per-model]]
model = "models/*"
ignore = ["TIE002"]
reason = "kept for vLLM 0.4"
"""


def test_every_key() -> None:
    """All settings, as they are meant."""
    assert parse_settings(FULL, "/repo/tieconv.toml") == Settings(
        path="/repo/tieconv.toml",
        select=("TIE", "STO001"),
        ignore=("TIE004",),
        fail_on=Level.ERROR,
        consumers="vllm",
        depth=Depth.HEADER,
        baseline="debt.json",
        per_model=(ModelIgnore("models/*", ("TIE002",), "kept for vLLM 0.4"),),
    )


def test_the_section_of_a_pyproject() -> None:
    """The same keys under [tool.tieconv]; a pyproject.toml without it has no settings."""
    text = '[project]\nname = "x"\n[tool.tieconv]\nfail-on = "note"\n'
    assert parse_settings(text, "/r/pyproject.toml") == Settings(path="/r/pyproject.toml", fail_on=Level.NOTE)
    assert parse_settings("[tool.ruff]\n", "/r/pyproject.toml") is None
    assert parse_settings("tool = 3\n", "/r/pyproject.toml") is None


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('selct = ["TIE"]', "unknown setting selct", "did you mean select?"),
        ('zzz = ["TIE"]', "unknown setting zzz", "the settings are select"),
        ('select = "TIE"', "select must be a list of rules", ""),
        ("select = [1]", "select must be a list of rules", ""),
        ('ignore = ["TIE099"]', "ignore: TIE099 is not a rule", "did you mean"),
        ('fail-on = "fatal"', "fail-on must be one of error, warning, note", ""),
        ("fail-on = 1", "fail-on must be a string", ""),
        ('depth = "deep"', "depth must be one of header, candidates, full", ""),
        ('baseline = ""', "baseline must be a string that is not empty", ""),
        ("per-model = 3", "per-model must be tables", ""),
        ('[[per-model]]\nignore = ["TIE"]\nreason = "r"', "per-model[1].model is missing", ""),
        ('[[per-model]]\nmodel = "a"\nreason = "r"', "per-model[1].ignore is missing", ""),
        ('[[per-model]]\nmodel = "a"\nignore = []\nreason = "r"', "per-model[1].ignore is missing", ""),
        ('[[per-model]]\nmodel = "a"\nignore = ["TIE"]', "per-model[1].reason is missing: say why", ""),
        ('[[per-model]]\nmodel = "a"\nignore = ["TIE"]\nreason = " "', "per-model[1].reason must be a string", ""),
        ('[[per-model]]\nmodel = "a"\nignore = ["TIE"]\nresaon = "x"', "unknown setting per-model[1].resaon", "reason"),
        ("a = = 1", "is not valid TOML", "correct the line"),
        ("a = " + "[" * 5000, "", ""),
        ("a = " + "1" * 5000, "is not valid TOML: it holds an integer of thousands of digits", ""),
    ],
)
def test_what_is_not_understood_is_told(text: str, message: str, hint: str) -> None:
    """One sentence with the file and the key, and a hint."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, "/r/tieconv.toml")
    assert "/r/tieconv.toml" in caught.value.message and message in caught.value.message
    assert hint in caught.value.hint and caught.value.hint


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Any text is settings or a `SettingsError`."""
    try:
        settings = parse_settings(text, "/r/tieconv.toml")
    except SettingsError as error:
        assert error.message.isprintable()
    else:
        assert isinstance(settings, Settings)


HOSTILE = {
    "a long integer": "x = " + "1" * 100_000,
    "a long integer as the depth": "depth = " + "1" * 100_000,
    "a long hexadecimal integer": "depth = 0x" + "f" * 100_000,
    "a long key": "a." * 100_000 + "a = 1",
    "a long key in quotes": '"a" . ' * 100_000 + "a = 1",
    "a long table": "[" + "a." * 100_000 + "a]",
    "a long key of an inline table": "x = { " + "a." * 100_000 + "a = 1 }",
    "many arrays": "x = " + "[" * 100_000,
    "many inline tables": "x = " + "{a=" * 100_000,
    "a repeated key": 'depth = "full"\ndepth = "full"',
    "an infinite number": "depth = inf",
    "a date": "depth = 2021-13-99",
    "half a surrogate pair": 'depth = "\\ud800"',
    "a null character": 'baseline = "a\\u0000b"',
}


def test_hostile_settings(tmp_path: Path, models: Path) -> None:
    """One sentence that names the file, for `tieconv.toml` and for the section of a `pyproject.toml`."""
    for name, text in HOSTILE.items():
        for path, content in (
            (tmp_path / "tieconv.toml", text),
            (tmp_path / "pyproject.toml", f"[tool.tieconv]\n{text}"),
        ):
            path.write_text(content)
            with prompt(2):
                message = refused("check --config", path, models / "t5")
            assert path.name in message and len(message) < 1000, (name, message)
            path.unlink()


def test_hostile_baselines(tmp_path: Path, models: Path) -> None:
    path = tmp_path / "baseline.json"
    good = json.dumps({"schema": "tieconv.baseline/1", "depth": "full", "entries": []})
    for text in (
        "1" * 100_000, "[" * 100_000, '{"a":' * 100_000, good[:-1] + ', "depth": "full"}', "[]", "null", "NaN",
        good.replace("[]", "1e999"), good.replace("[]", "NaN"), good.replace('"full"', "1" * 5000),
        good.replace("[]", "[[]]"), good.replace("[]", '[{"model": []}]'), good.replace("[]", "{}", 1)[:-2],
    ):  # fmt: skip
        path.write_text(text)
        assert "baseline.json is not a tieconv.baseline/1 file" in refused("check --baseline", path, models / "t5"), (
            text
        )


def test_an_endless_list_on_standard_input() -> None:
    """`tieconv check - < /dev/zero` stops at a bound."""
    from tieconv.sources import user_files

    problem = "the list on standard input cannot be read: it is larger than 64 MiB"
    with open("/dev/zero", "rb") as endless, pytest.raises(SettingsError, match=problem):
        user_files.read_stream(endless, "the list on standard input")
