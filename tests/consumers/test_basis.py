"""What an answer rests on: releases that ran, or the source alone; its data says with which release and how."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tieconv as api
from fixtures.loaders import DATA, document
from tests.checks.fixtures.model import LLAMA, flagged, llama, save
from tieconv.architectures import class_table
from tieconv.cli import main
from tieconv.loaders.interface import basis


@pytest.mark.parametrize(
    ("ran", "every", "asked", "expected"),
    [
        ((), (), None, "read"),
        ((), ("1.0",), (1, 0), "read"),
        (("0.32.2",), ("0.28.4", "0.32.2"), None, "ran 0.32.2"),
        (("0.32.2",), ("0.28.4", "0.32.2"), (0, 32), "ran 0.32.2"),
        (("5.0.0", "5.23.0"), ("4.57.6", "5.0.0", "5.23.0"), None, "ran 5.0.0, 5.23.0, not the releases between them"),
        (("5.0.0", "5.23.0"), ("4.57.6", "5.0.0", "5.23.0"), (5, 9), "between 5.0.0 and 5.23.0, which ran"),
        (("0.32.2",), ("0.28.4", "0.32.2"), (0, 30), "between 0.28.4 and 0.32.2, which ran"),
        (("0.32.2",), ("0.28.4", "0.32.2"), (0, 40), "newer than 0.32.2, which ran"),
        (("0.28.4",), ("0.28.4", "0.32.2"), (0, 20), "older than 0.28.4, which ran"),
    ],
)
def test_basis(ran: tuple[str, ...], every: tuple[str, ...], asked: tuple[int, ...] | None, expected: str) -> None:
    assert basis(ran, every, asked) == expected


def test_json_and_text(tmp_path: Path) -> None:
    """Each answer names its basis in JSON; text says it behind the sentence."""
    folder = save(tmp_path / "model", flagged(LLAMA, True), llama())
    spec = "transformers==4.57.2,text-generation-inference"
    entries = json.loads(CliRunner().invoke(main, ["inspect", str(folder), "--for", spec, "--json"]).stdout)[
        "consumers"
    ]
    assert [entry["basis"] for entry in entries] == ["between 4.48.3 and 4.57.6, which ran", "read"]
    lines = CliRunner().invoke(main, ["inspect", str(folder), "--for", spec]).stdout.splitlines()
    start = lines.index("consumers")
    assert lines[start + 1].endswith("(between 4.48.3 and 4.57.6, which ran)")
    assert lines[start + 2].endswith("(unverified: the source was read, the loader was never run)")


def test_findings_name_what_never_ran(tmp_path: Path) -> None:
    """A finding about a loader that no test runs says so."""
    folder = save(tmp_path / "model", flagged(LLAMA, False), llama())
    (prediction,) = api.inspect(folder, consumers="text-generation-inference").consumers
    assert prediction.basis == "read"
    found = CliRunner().invoke(main, ["check", str(folder), "--for", "text-generation-inference"]).stdout
    assert "text-generation-inference 3.x (unverified)" in found


FILES = sorted(DATA.glob("*.json"))
ROOM = DATA.parent
CLASSES = frozenset(class_table.names())
TYPES = frozenset(str((class_table.record(5, name) or {})["type"]) for name in CLASSES)
NAMED_BY_READERS = 2
"""Strings of one literal that are model types or classes: one may be a word, like `bart` in a sentence."""


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_it_is_of(path: Path) -> None:
    """The release, how it was measured, and the form in which the script writes it."""
    entry = read(path)
    assert path.read_text(encoding="utf-8") == document(entry)
    assert entry["release"].split()[0].lower().startswith(path.stem.split("-")[0][:4]) and entry["measured"].endswith(
        "."
    )
    assert entry["about"].keys() <= entry["tables"].keys()


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.startswith("transformers")], ids=lambda p: p.stem)
def test_tables_of_transformers_are_explained_and_name_what_is_known(path: Path) -> None:
    """Each table has its sentence; its entries are classes or model types of the architectures' table."""
    entry = read(path)
    assert list(entry["about"]) and entry["about"].keys() == entry["tables"].keys()
    for table, names in entry["tables"].items():
        unknown = set(names) - CLASSES - TYPES
        assert table == "types" or not unknown, (table, unknown)


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_lists_classes_or_types(path: Path) -> None:
    """A literal of several class names or model types would be a measurement without its release."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            entries = [*node.keys, *node.values] if isinstance(node, ast.Dict) else node.elts
            texts = [one.value for one in entries if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            found = {text for text in texts if text in CLASSES or text in TYPES}
            assert len(found) < NAMED_BY_READERS, f"{path.name}:{node.lineno}: {sorted(found)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_module_reads_the_file(path: Path) -> None:
    """A release holds once a loader's module names it: by the file's name, or by the version that ends it."""
    texts = {
        node.value
        for module in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    version = path.stem.rpartition("-")[2]
    assert {path.stem, version} & texts, f"no `CONSUMERS` of tieconv/loaders names {path.name}"
