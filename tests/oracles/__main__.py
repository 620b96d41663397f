"""Make a loader's environment, or hold the predictions against the loader: ``python -m tests.oracles --help``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tests.oracles.checkpoints import FAMILIES
from tests.oracles.environments import ENVIRONMENTS, setup, versions
from tests.oracles.measure import KEPT, Runner, faults, figures, judge, write


@click.group()
def main() -> None:
    """Real loaders judge the predictions."""


@main.command("setup")
@click.argument("name", type=click.Choice(sorted(ENVIRONMENTS)))
@click.argument("folder", type=click.Path(path_type=Path))
def setup_command(name: str, folder: Path) -> None:
    """Make the environment NAME in FOLDER."""
    click.echo(setup(name, folder))


@main.command("measure")
@click.argument("name", type=click.Choice(sorted(ENVIRONMENTS)))
@click.argument("spec")
@click.argument("python")
@click.option("--every", default=1, help="Load each N-th checkpoint.")
@click.option("--offset", default=0, help="Begin at another checkpoint.")
@click.option("--families", default="", help="Only these classes, with commas.")
@click.option("--write", "kept", is_flag=True, help="Keep the figures in docs/measured/oracles/.")
def measure_command(name: str, spec: str, python: str, every: int, offset: int, families: str, kept: bool) -> None:
    """Hold the predictions for SPEC (a loader, or loader==version) against the environment NAME, run by PYTHON."""
    runner = Runner(ENVIRONMENTS[name].loader, python)
    judged = list(judge(spec, runner, families.split(",") if families else FAMILIES, every, offset))
    runner.close()
    found = figures(judged)
    for line in found["wrong"]:
        click.echo(line)
    for reason, count in found["unknown_reasons"].items():
        click.echo(f"unknown {count}: {reason}")
    click.echo(f"unmatched: {found['unmatched_families']}")
    click.echo({key: value for key, value in found.items() if isinstance(value, int)} | {"wrong": len(found["wrong"])})
    if kept:
        click.echo(write(name, spec, versions(name, python), found))


@main.command("check")
@click.argument("names", nargs=-1, type=click.Choice(sorted(ENVIRONMENTS)), required=True)
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path(".oracles"), help="Where environments are kept."
)
@click.option("--every", default=1, help="Load each N-th checkpoint.")
def check_command(names: tuple[str, ...], folder: Path, every: int) -> None:
    """Fail if a loader refutes a prediction that docs/measured/oracles/ does not list as wrong.

    Makes the environments that FOLDER lacks.
    """
    faulty = 0
    for name in names:
        kept = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
        python = folder / name / "bin" / "python"
        runner = Runner(ENVIRONMENTS[name].loader, str(python if python.exists() else setup(name, folder / name)))
        judged = list(judge(kept["consumer"], runner, FAMILIES, every))
        runner.close()
        wrong = faults(name, judged)
        for line in wrong:
            click.echo(line, err=True)
        answered = sum(one.answered for one in judged)
        click.echo(f"{name}: {len(judged):,} checkpoints, {answered:,} answered, {len(wrong)} new faults")
        faulty += len(wrong) + (not answered)
    if faulty:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
