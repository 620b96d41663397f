"""Lists of local models with their filters, and the file that each finding is about."""

from __future__ import annotations

import io
import os
import shutil
import time
from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures import builder
from tests.checks.fixtures.model import EMBED, HEAD, LLAMA, flagged, matrix, save_shards
from tests.checks.fixtures.tie import ASKED
from tieconv import TieconvError, check
from tieconv.api.check import expand, read_lists
from tieconv.checks.registry import RULES
from tieconv.gate.examine import file_of
from tieconv.sources.user_files import place_of

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two models."""
    for name in ("new", "old"):
        shutil.copytree(MODELS / "t5", tmp_path / "runs" / name)
    for path in (tmp_path / "runs" / "old").iterdir():
        os.utime(path, (0, time.time() - 40 * 86400))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_list_in_a_file(work: Path) -> None:
    """In the place of its argument; empty lines and comments are skipped."""
    (work / "models.txt").write_text("# nightly\n\nruns/new\n  hf://org/name  \n")
    assert read_lists(["runs/old", "@models.txt"], io.BytesIO()) == ("runs/old", "runs/new", "hf://org/name")


def test_a_list_on_stdin(work: Path) -> None:
    assert read_lists(["-"], io.BytesIO(b"runs/new\n")) == ("runs/new",)


def test_a_directory_with_an_at_sign(work: Path) -> None:
    """An existing path is a model, and no list."""
    (work / "runs/new").rename(work / "@models")
    assert read_lists(["@models"], io.BytesIO()) == ("@models",)


def test_a_list_that_is_missing(work: Path) -> None:
    with pytest.raises(TieconvError, match=r"absent\.txt: no such list of models"):
        read_lists(["@absent.txt"], io.BytesIO())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("runs/new", "runs/old")),
        ({"include": ["n*"]}, ("runs/new",)),
        ({"include": ["runs/o*"]}, ("runs/old",)),
        ({"exclude": ["runs/**"]}, ()),
        ({"newer_than": "7d"}, ("runs/new",)),
        ({"newer_than": "2001-01-01"}, ("runs/new", "runs/old")),
        ({"newer_than": "2001-01-01T12:00", "exclude": ["new"]}, ("runs/old",)),
    ],
)
def test_filters(work: Path, options: dict[str, object], expected: tuple[str, ...]) -> None:
    assert expand(["runs"], **options) == expected  # type: ignore[arg-type]


def test_a_filter_sees_the_name_of_the_working_directory(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("runs/new")
    assert expand(["."], include=["new"]) == (".",)
    assert expand(["hf://org/new/"], include=["new"]) == ("hf://org/new/",)


def test_the_filters_of_python(work: Path) -> None:
    """`tieconv.check` has them too."""
    assert [model.source for model in check("runs", include=["*"], exclude=["new"]).models] == ["runs/old"]
    assert [model.source for model in check("runs", newer_than="7d").models] == ["runs/new"]


def test_the_age_of_one_file(work: Path) -> None:
    assert expand(["runs/old/model.safetensors", "runs/new"], newer_than="1d") == ("runs/new",)


def test_directories_of_mlflow_and_wandb(work: Path) -> None:
    """Both are ordinary directories: MLflow's with its MLmodel file, W&B's with the name and version of an artifact."""
    mlflow = work / "mlruns/0/3f2a/artifacts/model"
    (mlflow / "components/tokenizer").mkdir(parents=True)
    (mlflow / "MLmodel").write_text("flavors:\n  transformers: {model_binary: model}\n")
    (mlflow / "components/tokenizer/tokenizer_config.json").write_text("{}")
    shutil.copytree(MODELS / "llama-duplicated", mlflow / "model")
    wandb = work / "artifacts/model-3f2a:v7"
    shutil.copytree(MODELS / "t5", wandb)
    expected = ("mlruns/0/3f2a/artifacts/model/model", "artifacts/model-3f2a:v7")
    assert expand(["mlruns", "artifacts"]) == expected
    report = check(expected)
    assert [[entry.finding.rule for entry in model.findings] for model in report.models] == [["TIE002"], []]


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
