"""The file that a finding is about is one of the model, and stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures import builder
from tests.checks.fixtures.model import EMBED, HEAD, LLAMA, flagged, matrix, save_shards
from tests.checks.fixtures.tie import ASKED
from tests.loops import case, fresh
from tieconv.checks.registry import RULES
from tieconv.gate.examine import file_of
from tieconv.sources.user_files import place_of

FILES = {
    "config.json": "TIE007 TIE008 TIE009 TIE013 TIE014 VOC001 VOC002 VOC003 MTP001 SEC002 COD001 PEF006 CON005 QNT011",
    "pytorch_model.bin": "STO003 STO004 STO005",
    "model.safetensors.index.json": "IDX001 IDX002 IDX003 IDX004 IDX005 IDX009 IDX011 IDX012",
    "model-00001-of-00002.safetensors": "IDX006",
    "model-00002-of-00002.safetensors": "IDX008",
    "model (1).safetensors": "IDX010",
    "shard-00001-model-00001-of-00001.safetensors": "TRN001",
    "tokenizer.json": "SEC001",
    "adapter_config.json": "PEF001 PEF002",
    "adapter_model.safetensors": "PEF004 PEF005",
    "model.onnx": "ONX001 ONX002 ONX003 ONX004",
}
EXPECTED = {code: file for file, codes in FILES.items() for code in codes.split()}
"""All others are about model.safetensors."""


def test_the_file_is_one_of_the_model(tmp_path: Path) -> None:
    """For every rule: an annotation in a pull request needs a file that is there."""
    for rule in RULES:
        with case(rule.code):
            folder = fresh(tmp_path)
            build = builder(rule.code, "bad")
            assert build is not None
            path = build(folder / "model")
            inspection = api.inspect(path, consumers=ASKED.get(rule.code))
            finding = next(candidate for candidate in inspection.findings if candidate.rule == rule.code)
            file = file_of(inspection, finding)
            path = Path(inspection.checkpoint.root) / file
            assert file and (path.is_symlink() or path.exists())
            assert file == EXPECTED.get(rule.code, "model.safetensors")


@pytest.mark.parametrize(("same", "rule"), [(True, "TIE002"), (False, "TIE001")])
def test_a_head_in_another_shard_is_in_the_file_of_the_head(tmp_path: Path, same: bool, rule: str) -> None:
    """What repairs the model changes the shard of the head, not the one of the embedding."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shards = {first: {EMBED: matrix()}, second: {HEAD: matrix() if same else matrix() + 1}}
    folder = save_shards(tmp_path / "model", flagged(LLAMA, True), shards, {EMBED: first, HEAD: second})
    inspection = api.inspect(folder)
    (finding,) = [finding for finding in inspection.findings if finding.rule == rule]
    assert file_of(inspection, finding) == second


def test_the_place_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is named, links above it resolved, its own name kept."""
    (tmp_path / "real" / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "alias").symlink_to("model")
    home = tmp_path.resolve() / "real"
    monkeypatch.chdir(tmp_path / "real" / "model")
    names = [".", "../model/", str(tmp_path / "link" / "model"), "../../link/model"]
    assert {place_of(name) for name in names} == {str(home / "model")}
    assert place_of("../alias") == str(home / "alias")
    assert place_of("hf://org/name@main") == "hf://org/name@main"
