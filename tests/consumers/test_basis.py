"""What an answer rests on: the releases that ran, where others lie beside them, or the source alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import tieconv as api
from tests.checks.fixtures.model import LLAMA, flagged, llama, save
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
