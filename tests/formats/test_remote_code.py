"""Python beside the weights is read as text, within limits, and never run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import LLAMA, REMOTE, Config, flagged, llama, save
from tieconv.formats import directory

CLASS = "class A:\n    _tied_weights_keys{} = {}\n"


def rules(folder: Path, source: bytes | str, *, used: bool = True, config: Config = REMOTE) -> list[str]:
    more = {"auto_map": {"AutoModelForCausalLM": "modeling_a.A"}} if used else {}
    save(folder, {"tie_word_embeddings": True, **config, **more}, llama())
    (folder / "modeling_a.py").write_bytes(source.encode() if isinstance(source, str) else source)
    return [f"{finding.rule} {finding.level}" for finding in api.inspect(folder).findings if finding.rule == "COD001"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, "COD001 note"),
        (flagged(LLAMA, False), "COD001 note"),
        (flagged(REMOTE, False), "COD001 warning"),
        (flagged(REMOTE, True), "COD001 error"),
    ],
    ids=["known to transformers", "known, untied", "untied", "tied"],
)
def test_the_level_is_what_transformers_5_does(config: Config, expected: str, tmp_path: Path) -> None:
    """Measured with 5.23: a tied model is not loaded, an untied one not saved; without `trust_remote_code` transformers
    runs its own class where it has one, and nothing stops.
    """
    assert rules(tmp_path / "model", CLASS.format("", '["lm_head.weight"]'), config=config)[:1] == [expected]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CLASS.format("", '["lm_head.weight"]'), ["COD001 error"]),
        (CLASS.format(": list[str]", '["lm_head.weight"]'), ["COD001 error"]),
        (CLASS.format("", '("lm_head.weight",)'), ["COD001 error"]),
        (CLASS.format("", "[name for name in ()]"), []),
        (CLASS.format("", '{"lm_head.weight": "lm_head.weight"}'), ["COD001 warning"]),
        (CLASS.format("", '{"lm_head.weight": "model.embed_tokens.weight"}'), []),
        (CLASS.format("", '{**{}, "lm_head.weight": "model.embed_tokens.weight"}'), []),
        ("_tied_weights_keys = ['elsewhere']", []),
        ("# _tied_weights_keys = ['a comment']", []),
        ('class A:\n    """Set this:\n\n    _tied_weights_keys = ["lm_head.weight"]\n    """', []),
        ('class A:\n    """Set this."""\n    _tied_weights_keys = ["lm_head.weight"]', ["COD001 error"]),
    ],
    ids=range(11),
)
def test_declarations(source: str, expected: list[str], tmp_path: Path) -> None:
    assert rules(tmp_path / "model", source) == expected


def test_code_that_no_config_names_is_a_note(tmp_path: Path) -> None:
    assert rules(tmp_path / "model", CLASS.format("", '["lm_head.weight"]'), used=False) == ["COD001 note"]


def test_nothing_is_run_or_imported(tmp_path: Path) -> None:
    """Statements at the top of the file, which an import would run, do not fire."""
    canary = tmp_path / "canary"
    source = f"open({str(canary)!r}, 'w')\n" + CLASS.format("", f'[open({str(canary)!r}, "w")]')
    assert rules(tmp_path / "model", source) == ["COD001 error"]
    assert not canary.exists()


@pytest.mark.parametrize(
    "source",
    [
        "_tied_weights_keys = [",
        b"\x00_tied_weights_keys",
        b"\xff_tied_weights_keys",
        "_tied_weights_keys = " + "(" * 5000,
        "_tied_weights_keys = " + "-" * 200 + "1",
        "_tied_weights_keys = a" + ".a" * 200,
        "_tied_weights_keys = '\\d'",
    ],
    ids=["syntax", "nul", "encoding", "parentheses", "signs", "attributes", "escape"],
)
def test_hostile_source_says_nothing(source: bytes | str, tmp_path: Path) -> None:
    assert rules(tmp_path / "model", source) == []


def test_only_what_cannot_be_nested_deeply_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python in a browser ends in an expression of some thousand levels. Texts and comments are no levels."""
    parsed: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(directory.ast, "parse", lambda text: parsed.append(text) or parse(text))
    attributes, limit = ".a" * ((directory.NESTING_LIMIT - 5) // 2), directory.NESTING_LIMIT
    for count, (value, expected) in enumerate(
        [
            (f'["lm_head.weight", a{attributes}]', ["COD001 error"]),
            (f'["lm_head.weight", a{attributes}.a]', []),
            ("[" + "'lm_head.weight',  # [(\n" * limit + "]", ["COD001 error"]),
            ("['lm_head.weight'," + "()," * limit + "]", []),
        ]
    ):
        source = "x = 0" + "".join(f"\nif {word}:\n    y = a{'.a' * 200}" for word in "xy")
        assert rules(tmp_path / str(count), f"{source}\n{CLASS.format('', value)}") == expected, value
        assert len(parsed) == bool(expected)
        parsed.clear()


def test_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SIZE_LIMIT", 20)
    assert rules(tmp_path / "model", CLASS.format("", '["lm_head.weight"]')) == []
