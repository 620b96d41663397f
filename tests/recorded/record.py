"""Record the answers of the command line: stdout, stderr, exit code, with the model's path taken out."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from tests.recorded.models import Model

Answer = dict[str, Any]
Recording = dict[str, dict[str, Any]]
_STEP = 200
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1", "TQDM_DISABLE": "1"}


def record(folder: Path, models: Mapping[str, Model], jobs: int) -> Recording:
    """Return every answer about every model; equal answers are held once, under their digest."""
    recording: Recording = {"models": {}, "answers": {}}
    tasks = [(name, model) for name, model in models.items()]
    with (
        patch.dict(os.environ, _ENVIRONMENT),  # what the processes inherit is read before they import anything
        multiprocessing.get_context("spawn").Pool(jobs, _start, (folder,)) as pool,
    ):
        for name, content, answers in pool.imap_unordered(_all_answers, tasks, chunksize=4):
            digests = {}
            for command, answer in answers.items():
                digest = hashlib.sha256(answer.encode()).hexdigest()[:20]
                recording["answers"].setdefault(digest, json.loads(answer))
                digests[command] = digest
            recording["models"][name] = {"content": content, "answers": digests}
            if len(recording["models"]) % _STEP == 0:
                print(f"{len(recording['models'])} of {len(models)} models", file=sys.stderr)
    return recording


def _start(folder: Path) -> None:
    os.chdir(folder)
    warnings.simplefilter("always")  # once in a process would depend on the order of the models


def _all_answers(task: tuple[str, Model]) -> tuple[str, str, dict[str, str]]:
    """Return the answers about one model as JSON texts, and the digest of its bytes, which no command may change."""
    name, model = task
    before = content(Path(model.path))
    answers = {line: json.dumps(answer(line, model), sort_keys=True) for line in commands(model.group)}
    assert content(Path(model.path)) == before, f"a command changed {name}"
    return name, before, answers


def answer(line: str, model: Model) -> Answer:
    """Return what the command line prints about a model; the working directory holds the models."""
    from tieconv.cli import main

    paths = {MODEL: model.path, OTHER: model.other}
    words = [paths.get(word, word) for word in line.split()]
    result = CliRunner().invoke(main, words, prog_name="tieconv")
    found: Answer = {"exit": result.exit_code, "stdout": _output(_without_paths(result.stdout, model))}
    for said in _without_paths(result.stderr, model).splitlines():
        start, _, rest = said.partition(": ")
        if start in ("error", "hint") and start not in found:
            found[start] = rest
        else:
            found.setdefault("stderr", []).append(said)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        found["exception"] = repr(result.exception)
    return found


def _without_paths(text: str, model: Model) -> str:
    text = text.replace(f"{Path.cwd()}/", "")
    for path, word in ((model.path, MODEL), (model.other, OTHER)):
        text = text.replace(path, word)
        if not Path(path).is_dir():
            text = text.replace(str(Path(path).parent), f"{word}_DIRECTORY")
    return text


def _output(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.splitlines()


def content(path: Path) -> str:
    """Return a digest of every file and link of a model."""
    root = path if path.is_dir() else path.parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*")):
        digest.update(f"\0{file.relative_to(root)}\0".encode())
        if file.is_symlink():
            digest.update(os.readlink(file).encode())
        elif file.is_file():
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:20]


MODEL, OTHER = "MODEL", "OTHER"

READING = (
    "inspect MODEL --consumers --json",
    "inspect MODEL --depth full --json",
    "check MODEL --no-config --json",
    "check MODEL --no-config --json --for all",
    "diff MODEL OTHER --json",
)
"""Commands without a plan, for every model."""

TEXT = ("inspect MODEL --consumers", "check MODEL --no-config", "check MODEL --no-config --fix", "diff MODEL OTHER")
"""What people read, and the plans of `check --fix`, which have no JSON."""

_PLANS = (
    "retie MODEL",
    "retie MODEL --from embed --force",
    "retie MODEL --from head --force",
    "retie MODEL --from mean --force",
    "retie MODEL --from embed --max-kl 0.5",
    "retie MODEL --fold-norm",
    "retie MODEL --bias zero",
    "retie MODEL --bias strip",
    "untie MODEL",
    "untie MODEL --keep-flag",
    "untie MODEL --bias zero",
    "untie MODEL --bias strip",
    "dedup MODEL",
    "dedup MODEL --drop-other-formats",
    "bias zero MODEL",
    "bias strip MODEL",
    "bias unify MODEL",
    "bias resize MODEL",
    "set-tie true MODEL",
    "set-tie false MODEL",
    "set-tie auto MODEL",
    "set-tie true MODEL --force",
    "set-tie false MODEL --force",
    "convert MODEL --to safetensors",
    "convert MODEL --to torch",
    "convert MODEL --to safetensors --max-shard-size 20KB",
    "reindex MODEL",
    "reindex MODEL --prune",
    "reindex MODEL --add-format",
    "reindex MODEL --strip-prefix",
    "resize MODEL --to rows",
    "resize MODEL --to config",
    "resize MODEL --to 256",
    "resize MODEL --to 256 --fill mean",
)
PLANS = tuple(f"{line} --dry-run --json" for line in _PLANS)
"""The plan of every writing verb."""

ANALYSIS = ("analyze MODEL --json",)
"""Slower: only for models of which there are few."""


def commands(group: str) -> tuple[str, ...]:
    """Return the command lines for the models of a group."""
    if group == "classes":  # several hundred models: names, groups, loaders and rules, and the plans of both ways
        return (*READING, *(line for line in PLANS if line.split()[:2] in (["retie", MODEL], ["untie", MODEL])))
    many = group in ("grid", "layouts")
    return (*READING, *PLANS) if many else (*READING, *TEXT, *PLANS, *ANALYSIS)
