"""`check` on a directory of models, on a pattern, and at the root of a repository."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.run import ok, refused, run

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with models at several depths, a virtual environment, and directories that hold none."""
    for where in ("models/a", "models/group/b", ".cache/c", "venv/lib/d"):
        shutil.copytree(MODELS / "llama-tied", tmp_path / where)
    shutil.copytree(MODELS / "llama-duplicated", tmp_path / "models/bad")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr\n")
    (tmp_path / "venv" / "bin").mkdir()
    (tmp_path / "venv" / "bin" / "python").symlink_to("/usr/bin/env")
    os.mkfifo(tmp_path / "venv" / "pipe")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("x = 1\n")
    (tmp_path / "linked").symlink_to(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(*words: str) -> list[str]:
    """The models that were looked at, in order."""
    result = run("check", *words)
    return [line.rpartition(": ")[0] for line in result.stdout.splitlines() if line.endswith((": ok", ": failed"))]


def test_at_a_repository_root_the_models_below_are_checked(repository: Path) -> None:
    """As the pre-commit hook calls it: no arguments. Hidden directories, environments and links are passed over."""
    result = run("check")
    assert result.exit_code == 1
    assert sorted(checked()) == ["models/a", "models/bad", "models/group/b"]
    assert "SEC001" not in result.output and "venv" not in result.output


def test_a_directory_of_models(repository: Path) -> None:
    """`check models` needs no shell pattern."""
    assert sorted(checked("models")) == ["models/a", "models/bad", "models/group/b"]
    assert checked("models/a") == ["models/a"]


def test_settings_of_a_model_that_is_gone(repository: Path) -> None:
    """A note where all models of the directory were checked, not where some were."""
    entry = '[[per-model]]\nmodel = "models/gone"\nignore = ["TIE"]\nreason = "r"\n'
    Path("tieconv.toml").write_text(entry)
    note = "no checked model matches models/gone"
    runs = ("models", "models/a", "models --include a", "models --newer-than 7d")
    assert [note in run(f"check {words}").stderr for words in runs] == [True, False, False, False]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("models/*", ["models/a", "models/bad"]),
        ("models/**", ["models/a", "models/bad", "models/group/b"]),
        ("models/b*", ["models/bad"]),
        ("models/a/*.safetensors", ["models/a/model.safetensors"]),
    ],
)
def test_patterns_that_no_shell_expanded(repository: Path, pattern: str, expected: list[str]) -> None:
    """A quoted pattern, or one in a YAML file, stands for the models that it matches."""
    assert sorted(checked(pattern)) == expected


def test_a_pattern_without_a_match_is_an_error(repository: Path) -> None:
    """A gate that looks at nothing must not pass."""
    assert "no model matches mod/*" in refused("check mod/*")


def test_no_model_at_all_is_a_hint(repository: Path) -> None:
    """Exit 2, and nothing is said of somebody's virtual environment."""
    result = run("check src")
    assert result.exit_code == 2
    assert "src holds no weight file" in result.stdout and "hint: " in result.stdout and "SEC001" not in result.output
    assert run("inspect models").stderr.endswith("hint: check the models below it: tieconv check models\n")


def test_recursive_looks_below_a_model(repository: Path) -> None:
    """A trainer's output directory holds the final model and its checkpoints."""
    shutil.copytree(MODELS / "llama-duplicated", "models/a/checkpoint-10")
    assert checked("models/a") == ["models/a"]
    assert sorted(checked("--recursive", "models/a")) == ["models/a", "models/a/checkpoint-10"]
    assert sorted(checked("-r", "models/a", "models/bad")) == ["models/a", "models/a/checkpoint-10", "models/bad"]


def test_an_environment_inside_a_model_is_not_the_model(repository: Path) -> None:
    """Its links to the interpreter are no finding; a link of the model's own still is."""
    shutil.move("venv", "models/a/venv")
    assert "SEC001" not in ok("check models/a").output
    Path("models/a/extra.safetensors").symlink_to("/etc/hostname")
    assert "SEC001" in run("check models/a").stdout
