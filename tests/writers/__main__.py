"""Make each writer's environment, write its files, and judge tieconv on them: ``python -m tests.writers --help``."""

from __future__ import annotations

from pathlib import Path

import click

from tests.oracles.environments import make, versions_of
from tests.writers.measure import COUNTED, ENVIRONMENTS, WRITERS, cells as judge_cases, figures, keep, new_faults

FOLDER = Path(".oracles") / "writers"


@click.command()
@click.option("--only", multiple=True, type=click.Choice(sorted(WRITERS)), help="Only this writer.")
@click.option("--cases", default="", help="Only cases whose names contain this.")
@click.option("--every", default=1, help="Only each N-th case.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, help="Where environments are kept.")
@click.option("--python", help="Run the program with this interpreter instead of an environment.")
@click.option("--write", is_flag=True, help="Keep the figures in docs/measured/writers/.")
def main(only: tuple[str, ...], cases: str, every: int, folder: Path, python: str | None, write: bool) -> None:
    """Judge tieconv on the files of real programs. Exits with 1 if a cell is wrong that the page does not list.

    Makes the environments that FOLDER lacks.
    """
    wrong = 0
    for name in only or WRITERS:
        environment = WRITERS[name].environment
        interpreter = Path(python) if python else folder / environment / "bin" / "python"
        if not (python or interpreter.exists()):
            make(ENVIRONMENTS[environment], folder / environment)
        judged = dict(judge_cases(name, str(interpreter), cases, every))
        found = figures(versions_of(ENVIRONMENTS[environment], str(interpreter), WRITERS[name].show), judged)
        for line in found["wrong"]:
            click.echo(f"WRONG {name}: {line}")
        for line, count in found["refusals"].items():
            click.echo(f"refused {count}: {line}")
        counts = ", ".join(f"{found[key]:,} {key}" for key in ("files", *COUNTED))
        click.echo(f"{name}: {counts}, {len(found['wrong'])} wrong; notes {found['notes']}")
        wrong += len(new_faults(name, found))
        if write:
            click.echo(keep(name, found))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
