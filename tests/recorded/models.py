"""Build the models of a recording once, and record the answers of the command line about them."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from tests.conftest import ROOT

LIST = "models.json"
_FIXTURES = ROOT / "fixtures"
Made = Iterator[tuple[str, Path]]


@dataclass(frozen=True)
class Model:
    """One model: its path below the directory, and the path of the neighbour that `diff` compares it with."""

    group: str
    path: str
    other: str


def build(folder: Path, jobs: int) -> dict[str, Model]:
    """Return all models by name; write them to ``folder`` where its list is missing."""
    listed = folder / LIST
    if not listed.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SystemExit(f"{folder} is not empty and has no {LIST}: name another directory, or delete it")
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            made = pool.starmap(_build, [(folder, *part) for part in _parts()], chunksize=1)
        models = {name: asdict(model) for one in made for name, model in one.items()}
        listed.write_text(json.dumps(models, indent=1) + "\n", encoding="utf-8")
    entries = json.loads(listed.read_text(encoding="utf-8"))
    return {name: Model(**entry) for name, entry in entries.items()}


def _parts() -> Iterator[tuple[str, str]]:
    """Yield each group, in parts that are built side by side."""
    from fixtures import zoo
    from tests.consumers import grid

    yield from ((group, "") for group in _WHOLE)
    yield from (("grid", kind) for kind in grid.PLAN)
    for name in zoo.classes():
        if name not in zoo.UNBUILDABLE:
            yield "zoo", name


def _build(folder: Path, group: str, part: str) -> dict[str, Model]:
    """Write one part of a group; neighbours are the next models of the same class."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
        warnings.simplefilter("ignore")
        write = _WHOLE.get(group)
        made = write(folder / group) if write else _PARTED[group](folder / group, part, Path(scratch))
        paths = {name: path.relative_to(folder) for name, path in made}
    families: dict[str, list[str]] = {}
    for name, path in paths.items():
        families.setdefault(_family(folder / path) or name, []).append(name)
    neighbour = {name: family[(at + 1) % len(family)] for family in families.values() for at, name in enumerate(family)}
    return {
        name: Model(Path(path).parts[0], str(path), str(paths[neighbour[name]])) for name, path in sorted(paths.items())
    }


def _family(path: Path) -> str | None:
    config = (path if path.is_dir() else path.parent) / "config.json"
    try:
        value = json.loads(config.read_text(encoding="utf-8"))
        return str(value.get("architectures") or value.get("model_type"))
    except (OSError, ValueError, AttributeError):
        return None


def _fixtures(folder: Path) -> Made:
    for path in sorted((_FIXTURES / "models").iterdir()):
        yield f"fixtures/{path.name}", Path(shutil.copytree(path, folder / path.name / "model"))


def _exported(folder: Path) -> Made:
    for path in sorted(path for path in (_FIXTURES / "exported").iterdir() if path.is_dir()):
        copy = Path(shutil.copytree(path, folder / path.name / "model"))
        whole = sorted(copy.iterdir()) if path.name == "checkpoints" else [copy]
        yield from ((f"exported/{path.name}/{one.name}", one) for one in whole)


def _releases(folder: Path) -> Made:
    from fixtures.releases import RELEASES, build

    for name in RELEASES:
        yield f"releases/{name}", build(name, folder / name / "model")


def _public(folder: Path) -> Made:
    from fixtures.public import PUBLIC

    for name, public in PUBLIC.items():
        (folder / name / "model").mkdir(parents=True)
        yield f"public/{name}", public.build(folder / name / "model")


def _cases(folder: Path) -> Made:
    from fixtures.cases import CASES

    yield from _built(folder, {name: case.build for name, case in CASES.items() if case.build})


def _rules(folder: Path) -> Made:
    from tests.checks.fixtures import builder
    from tieconv.checks.registry import RULES

    builders = {f"{rule.code}-{kind}": builder(rule.code, kind) for rule in RULES for kind in ("bad", "good")}
    yield from _built(folder, {name: build for name, build in builders.items() if build})


def _built(folder: Path, builders: dict[str, Callable[[Path], Path]]) -> Made:
    for name, build in builders.items():
        (folder / name).mkdir(parents=True)
        yield f"{folder.name}/{name}", build(folder / name / "model")


def _graphs(folder: Path) -> Made:
    from fixtures.onnx_graphs import BUILDERS, build

    for name in BUILDERS:
        for external in (True, False):
            label = f"{name}-{'beside' if external else 'inside'}"
            yield f"graphs/{label}", build(name, folder / label / "model" / "model.onnx", external=external)


def _layouts(folder: Path) -> Made:
    from tests.consumers import layouts

    folder.mkdir()
    for name, path, _ in layouts.write(folder):
        yield f"layouts/{name}, {path.name}", path


def _grid(folder: Path, kind: str, scratch: Path) -> Made:
    from tests.consumers import grid

    foundry = grid.Foundry(scratch)
    cells = [cell for cell in grid.cells() if cell.kind == kind]
    for number, cell in enumerate(cells):
        yield f"grid/{cell.name}", foundry.write(cell, folder / f"{kind}-{number:03}" / "model")


def _zoo(folder: Path, name: str, _: Path) -> Made:
    """A class of the reload sample in each saved form, tied and untied; any other class once, tied."""
    from tests.reload.layouts import LAYOUTS, SAMPLE, Subject

    subject = Subject(name)
    if name not in SAMPLE:
        yield f"classes/{name}", subject.save(folder.parent / "classes" / name / "model", "single")
        return
    shards = LAYOUTS if SAMPLE.index(name) % 6 == 0 else ("single", "bin")
    for layout in shards:
        for tie in (True, False):
            label = f"{name}-{'tied' if tie else 'untied'}-{layout}"
            yield f"zoo/{label}", subject.save(folder / label / "model", layout, tie=tie)


_WHOLE: dict[str, Callable[[Path], Made]] = {
    "fixtures": _fixtures,
    "exported": _exported,
    "releases": _releases,
    "public": _public,
    "cases": _cases,
    "rules": _rules,
    "graphs": _graphs,
    "layouts": _layouts,
}
_PARTED: dict[str, Callable[[Path, str, Path], Made]] = {"grid": _grid, "zoo": _zoo}


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
    "retie MODEL", "retie MODEL --from embed --force", "retie MODEL --from head --force",
    "retie MODEL --from mean --force", "retie MODEL --from embed --max-kl 0.5", "retie MODEL --fold-norm",
    "retie MODEL --bias zero", "retie MODEL --bias strip", "untie MODEL", "untie MODEL --keep-flag",
    "untie MODEL --bias zero", "untie MODEL --bias strip", "dedup MODEL", "dedup MODEL --drop-other-formats",
    "bias zero MODEL", "bias strip MODEL", "bias unify MODEL", "bias resize MODEL", "set-tie true MODEL",
    "set-tie false MODEL", "set-tie auto MODEL", "set-tie true MODEL --force", "set-tie false MODEL --force",
    "convert MODEL --to safetensors", "convert MODEL --to torch",
    "convert MODEL --to safetensors --max-shard-size 20KB", "reindex MODEL", "reindex MODEL --prune",
    "reindex MODEL --add-format", "reindex MODEL --strip-prefix", "resize MODEL --to rows", "resize MODEL --to config",
    "resize MODEL --to 256", "resize MODEL --to 256 --fill mean",
)  # fmt: skip
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
