"""The file that a finding is about is one of the model, and stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures import builder
from tests.checks.fixtures.loaders import ASKED
from tieconv.checks.registry import RULES
from tieconv.gate.examine import file_of
from tieconv.sources.user_files import place_of

EXPECTED = {
    "TIE001": "model.safetensors",
    "TIE007": "config.json",
    "TIE008": "config.json",
    "TIE013": "config.json",
    "VOC001": "config.json",
    "IDX001": "model.safetensors.index.json",
    "IDX004": "model.safetensors.index.json",
    "PEF001": "adapter_config.json",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_file_is_one_of_the_model(rule, tmp_path: Path) -> None:
    """For every rule: an annotation in a pull request needs a file that is there."""
    build = builder(rule.code, "bad")
    assert build is not None
    path = build(tmp_path / "model")
    inspection = api.inspect(path, consumers=ASKED.get(rule.code))
    finding = next(candidate for candidate in inspection.findings if candidate.rule == rule.code)
    file = file_of(inspection, finding)
    assert (
        file
        and (Path(inspection.checkpoint.root) / file).is_symlink() | (Path(inspection.checkpoint.root) / file).exists()
    )
    assert file == EXPECTED.get(rule.code, file)


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
