"""Weight files that the model does not use are held against it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import EMBED, LLAMA, Array, flagged, llama, matrix, save, vector, weights

NORM = "model.norm.weight"


def inspect(folder: Path, tensors: dict[str, Array], depth: str = "candidates"):
    save(folder, flagged(LLAMA, True), llama())
    (folder / "consolidated.safetensors").write_bytes(weights(tensors))
    return api.inspect(folder, depth=depth)


@pytest.mark.parametrize(
    ("tensors", "depth", "differs", "level"),
    [
        ({EMBED: matrix()}, "candidates", {EMBED: False}, "note"),
        ({EMBED: matrix(seed=3)}, "candidates", {EMBED: True}, "warning"),
        ({EMBED: matrix(seed=3)}, "header", {EMBED: None}, "note"),
        ({EMBED: matrix(9)}, "header", {EMBED: True}, "warning"),
        ({EMBED: matrix().astype("<f2")}, "header", {EMBED: True}, "warning"),
        ({NORM: vector(4, seed=3)}, "candidates", {NORM: None}, "note"),
        ({NORM: vector(4, seed=3)}, "full", {NORM: True}, "warning"),
        ({"other": matrix()}, "full", {}, "note"),
    ],
    ids=range(8),
)
def test_same_names(
    tensors: dict[str, Array], depth: str, differs: dict[str, bool | None], level: str, tmp_path: Path
) -> None:
    """Another shape shows in the header; bytes are compared for tied names, and for all at full depth."""
    inspection = inspect(tmp_path / "model", tensors, depth)
    assert {shadow.name: shadow.differs for shadow in inspection.shadows} == differs
    assert [(finding.rule, str(finding.level)) for finding in inspection.findings] == [("IDX005", level)]


def test_unreadable_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", flagged(LLAMA, True), llama())
    (folder / "broken.safetensors").write_bytes(b"broken")
    inspection = api.inspect(folder)
    assert (inspection.shadows, [finding.rule for finding in inspection.findings]) == ((), ["IDX005"])
