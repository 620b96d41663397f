"""Build the models of a recording once, in a directory that later recordings read again.

The builders are those of the fixtures and of other tests. They are imported only where a model has to be built.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

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
    from tieconv.checks import RULES

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
