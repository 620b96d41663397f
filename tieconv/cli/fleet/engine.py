"""The options that choose where `check` and `fleet check` read models: processes here, or a cluster of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from concurrent.futures import Executor

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """Add ``--engine`` and ``--address``."""
    address = click.option(
        "--address",
        metavar="ADDRESS",
        help="With --engine ray: the cluster, such as auto or HOST:6379.  [default: RAY_ADDRESS, or a new one here]",
    )
    engine = click.option(
        "--engine",
        type=click.Choice(["processes", "ray"]),
        default="processes",
        show_default=True,
        help="Read the models in processes of this machine, or as tasks of Ray. With ray, -j 1 means every CPU.",
    )
    return engine(address(function))


@contextmanager
def engine_of(name: str, address: str | None, jobs: int) -> Iterator[tuple[Executor | None, int]]:
    """Give the executor, ``None`` for processes, and the number of tasks at once. Raises `click.UsageError`."""
    if name != "ray":
        if address is not None:
            raise click.UsageError("--address needs --engine ray")
        yield None, jobs
        return
    from tieconv.api.findings.gate import ray_cluster

    with ray_cluster(address) as executor:
        yield executor, jobs if jobs > 1 else executor.workers
