"""Make a loader's environment, or hold the predictions against the loader: ``python -m tests.oracles --help``."""

from __future__ import annotations

from pathlib import Path

import click

from tests.oracles.environments import ENVIRONMENTS, setup, versions
from tests.oracles.families import FAMILIES
from tests.oracles.measure import figures, judge, write
from tests.oracles.runner import Runner


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
        click.echo(write(spec, versions(name, python), found))


if __name__ == "__main__":
    main()
