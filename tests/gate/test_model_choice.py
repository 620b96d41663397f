"""Lists of local models, filters by name and age, and the directories of MLflow and W&B."""

from __future__ import annotations

import io
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.run import run
from tieconv import TieconvError, check
from tieconv.api.check import expand, read_lists
from tieconv.gate.model_sources import Choice

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
    (work / "none.txt").write_text("# no model\n\n")
    for empty in ("@none.txt", "-"):
        with pytest.raises(TieconvError, match="names no model"):
            read_lists([empty], io.BytesIO())
    with pytest.raises(ValueError, match="give at least one model"):
        check([])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("runs/new", "runs/old")),
        ({"include": ["n*"]}, ("runs/new",)),
        ({"include": ["runs/o*"]}, ("runs/old",)),
        ({"newer_than": "7d"}, ("runs/new",)),
        ({"newer_than": "2001-01-01"}, ("runs/new", "runs/old")),
        ({"newer_than": "2001-01-01T12:00", "exclude": ["new"]}, ("runs/old",)),
    ],
)
def test_filters(work: Path, options: dict[str, object], expected: tuple[str, ...]) -> None:
    assert expand(["runs"], **options) == expected  # type: ignore[arg-type]


def test_patterns_that_leave_no_model(work: Path) -> None:
    """A gate that checks no model would pass. No model may be new enough, as in a nightly job."""
    for patterns in (
        {"include": ["absent*"]},
        {"exclude": ["runs/**"]},
        {"include": ["x"], "newer_than": "2999-01-01"},
    ):
        with pytest.raises(TieconvError, match="no model passes --include and --exclude"):
            expand(["runs"], **patterns)  # type: ignore[arg-type]
    assert expand(["runs"], include=["n*"], newer_than="2999-01-01") == ()


def test_a_link_that_the_search_does_not_follow(work: Path) -> None:
    """A note names it, unless its model is checked under another name."""
    (work / "elsewhere").mkdir()
    (work / "runs/new").rename(work / "elsewhere/new")
    (work / "runs/linked").symlink_to(work / "elsewhere/new")
    (work / "runs/latest").symlink_to("old")
    (work / "runs/empty").symlink_to(work / "elsewhere")
    (work / "runs/old/deep").mkdir()
    shutil.copy(work / "runs/old/config.json", work / "runs/old/deep")
    result = run("check runs --fail-on error")
    assert "note: not checked: runs/old/deep; config.json without weights\n" in result.stderr
    assert "note: not checked: runs/linked; a search follows no link, so name the model\n" in result.stderr


def test_resume_reads_a_changed_model_again(work: Path) -> None:
    """Also if its size and its time stay."""
    words = "check runs/new --resume run.jsonl"
    path = work / "runs/new/model.safetensors"
    first, before = run(words), path.stat()
    path.write_bytes(b"\xff" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "could not be read" not in first.stdout and "could not be read" in run(words).stdout


def test_a_filter_sees_the_name_of_the_working_directory(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("runs/new")
    assert expand(["."], include=["new"]) == (".",)
    assert expand(["hf://org/new/"], include=["new"]) == ("hf://org/new/",)


def test_the_filters_of_python(work: Path) -> None:
    """`tieconv.check` has them too."""
    assert [model.source for model in check("runs", include=["*"], exclude=["new"]).models] == ["runs/old"]
    assert [model.source for model in check("runs", newer_than="7d").models] == ["runs/new"]


def test_the_age_of_one_file(work: Path) -> None:
    """A model of exactly this age is chosen, and one without an age, which is reported later."""
    assert expand(["runs/old/model.safetensors", "runs/new", "absent"], newer_than="1d") == ("runs/new", "absent")
    assert Choice(newer_than=5.0).chooses(("runs/old", 5.0)) and not Choice(newer_than=5.0).chooses(("runs/new", 4.9))


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
