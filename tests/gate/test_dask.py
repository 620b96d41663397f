"""An executor of Dask does the work of `check`: the findings of this process, and a killed worker costs its model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tieconv
from tieconv.gate.workers import Workers, unordered

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two workers, each a process."""
    distributed = pytest.importorskip("distributed", reason="the package distributed is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("dask"))
        patch.setenv("PYTHONPATH", str(Path(tieconv.__file__).parents[1]))
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster) as connected,
        ):
            yield connected


def test_the_same_findings(client: Any) -> None:
    """Of every fixture, in the same order."""
    models = sorted(MODELS.iterdir())
    far = tieconv.check(models, executor=client.get_executor(), jobs=2)
    assert far == tieconv.check(models)
    assert any(model.findings for model in far.models)


def _kill_some(name: str) -> str:
    if "poison" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    return name.upper()


def test_a_killed_worker_loses_its_own_task(client: Any) -> None:
    """Dask tries the task on several workers, which it starts again. The other tasks are done."""
    names = [f"n{number}" for number in range(30)]
    names[7] = "poison"
    workers = Workers(2, client.get_executor(retries=0))
    done = dict(unordered(_kill_some, names, workers, lambda name: f"lost {name}"))
    assert done == {number: "lost poison" if name == "poison" else name.upper() for number, name in enumerate(names)}
