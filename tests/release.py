"""What a new release of a loader changes: one command makes its environment, measures it and says the difference.

    python -m tests.release transformers==5.24.0              every class, its names, and the loader's cells
    python -m tests.release mlx-lm==0.32.2 --every 100        a hundredth of the cells
    python -m tests.release vllm --newest                     the newest release of the index

Prints what changed in words and writes docs/measured/releases/PACKAGE.json. Exits with 1 if an answer that tieconv
gives is wrong for the release, with ``--newest`` also if there is a newer one. With ``--write`` the new classes of
transformers go to newer.json, which tieconv reads.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tests.oracles.checkpoints import FAMILIES
from tests.oracles.environments import ENVIRONMENTS, Environment, make
from tests.oracles.measure import KEPT, Judged, Runner, figures, judge

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "tieconv" / "architectures" / "data"
MEASURED = ROOT / "docs" / "measured" / "releases"
WORDS = {
    "in": "the name of its embedding", "out": "the name of its head", "bias": "its head biases",
    "groups": "what it ties", "renames": "how it renames stored names", "levels": "the levels of its flag",
    "truth": "when it ties",
    "tying": "whether it can tie", "means": "what the flag means", "prefix": "the prefix of its names",
    "type": "its model type",
}  # fmt: skip
"""What the fields of a class's record are."""
Records = Mapping[str, Mapping[str, Any]]


def environment_of(package: str) -> str:
    """The environment that runs the newest measured release of a package. Raises `click.UsageError` for others."""
    listed = [name for name, made in ENVIRONMENTS.items() if pinned(made, package)]
    own = [name for name in listed if name.split("-")[0] == package.split("-")[0] or name == package]
    if not own:
        raise click.UsageError(f"no environment runs {package}; there are: {', '.join(sorted(ENVIRONMENTS))}")
    return max(own, key=lambda name: number(pinned(ENVIRONMENTS[name], package)))


def pinned(environment: Environment, package: str) -> str:
    """The release of a package in an environment, or nothing."""
    words = (word.partition("==") for word in (*environment.packages, *environment.alone))
    return next((version for name, _, version in words if name in (package, f"{package}-cpu") and version), "")


def number(version: str) -> tuple[int, ...]:
    """A release as numbers, for an order."""
    return tuple(map(int, re.findall(r"\d+", version)))


def released(environment: Environment, package: str, version: str) -> Environment:
    """The environment with another release of the package."""
    old = pinned(environment, package)
    changed = tuple(
        tuple(
            re.sub(rf"^({re.escape(package)}(?:-cpu)?)=={re.escape(old)}$", rf"\1=={version}", word) for word in words
        )
        for words in (environment.packages, environment.alone)
    )
    return replace(environment, packages=changed[0], alone=changed[1])


def classes_in_words(old: Records, new: Records) -> Iterator[str]:
    """Yield a line for classes that came, for those that went, and for each that changed."""
    for verb, names in (("new", new.keys() - old.keys()), ("gone", old.keys() - new.keys())):
        if names:
            yield f"{len(names)} classes {verb}: {', '.join(sorted(names))}"
    for name in sorted(old.keys() & new.keys()):
        fields = [field for field in WORDS if old[name].get(field) != new[name].get(field)]
        for field in fields:
            yield f"{name}: {WORDS[field]} changed from {old[name].get(field)!r} to {new[name].get(field)!r}"


def cells_in_words(kept: Mapping[str, Any], judged: list[Judged]) -> Iterator[str]:
    """Yield a line for each cell that the release refutes and the measured one did not."""
    known = {line.partition(": predicted")[0] for line in kept["wrong"]}
    for one in judged:
        if one.answered and not one.right and one.cell not in known:
            yield str(one)


def transformers_classes(python: Path, write: bool) -> list[str]:
    """Measure every class under the release and say what differs from the table and what it adds."""
    written = python.parents[1] / "classes.json"
    subprocess.run([python, "fixtures/families.py", "--into", written], cwd=ROOT, check=True)
    old, new = (json.loads(path.read_text()) for path in (TABLES / "transformers5.json", written))
    old.pop(""), new.pop("")
    lines = list(classes_in_words(old, new))
    words = [str(python), "fixtures/families.py", "--newer", *["--write"] * write]
    added = subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    drift = [] if added.startswith("no drift") else [f"newer.json: {line}" for line in added.splitlines()[2:]]
    return lines + drift


def newest(package: str) -> str:
    """The newest release of a package in the index."""
    words = [sys.executable, "-m", "pip", "index", "versions", package, "--pre"]
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, check=True).stdout
    return done.split("(", 1)[1].split(")", 1)[0]


@click.command(help=__doc__)
@click.argument("release")
@click.option("--newest", "asked", is_flag=True, help="Take the newest release; nothing is done if it was measured.")
@click.option("--every", default=10, show_default=True, help="Load each N-th checkpoint of the grid.")
@click.option("--classes/--no-classes", default=True, help="Also measure every class of transformers.")
@click.option("--write", is_flag=True, help="Write the table of the newer release.")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path(".oracles"), help="Where environments are kept."
)
def main(release: str, asked: bool, every: int, classes: bool, write: bool, folder: Path) -> None:
    """Measure one release and print the difference."""
    warnings.simplefilter("ignore")
    package, _, version = release.partition("==")
    name = environment_of(package)
    before = pinned(ENVIRONMENTS[name], package)
    version = newest(package) if asked else version
    if asked and number(version) <= number(before):
        click.echo(f"{package} {before} is measured, and nothing is newer")
        return
    environment = released(ENVIRONMENTS[name], package, version)
    python = folder / f"release-{package}-{version}" / "bin" / "python"
    if not python.exists():
        make(environment, python.parents[1])
    kept = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
    runner = Runner(environment.loader, str(python.absolute()))
    judged = list(judge(kept["consumer"], runner, FAMILIES, every))
    runner.close()
    found = figures(judged)
    wrong = list(cells_in_words(kept, judged))
    answered = found["right"] + len(found["wrong"])
    click.echo(
        f"{package} {version}, held against what was measured with {before}: {len(judged):,} checkpoints, {answered:,} "
        f"answered, {len(wrong)} of them newly wrong"
    )
    lines = transformers_classes(python.absolute(), write) if package == "transformers" and classes else []
    for line in (*wrong, *lines, f"{len(lines)} differences of classes"):
        click.echo(line)
    MEASURED.mkdir(parents=True, exist_ok=True)
    document = {
        "package": package, "version": version, "before": before, "every": every, "cells": len(judged),
        "answered": answered,
        "wrong": wrong, "classes": lines, "rests": f"{kept['consumer']}: {kept['cells']:,} cells, from {before}",
    }  # fmt: skip
    (MEASURED / f"{package}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if wrong or asked:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
