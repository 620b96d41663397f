"""`--engine ray`: the same findings as processes; lost workers and machines cost their own tasks; clear refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tieconv
from tests import children
from tests.children import wait_until
from tests.cli.run import ok, refused
from tieconv.errors import MissingPackageError, SettingsError
from tieconv.gate.ray_executor import RayExecutor
from tieconv.gate.workers import Workers, unordered
from tieconv.version import VERSION

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
NAMES = ("llama-tied", "llama-duplicated", "llama-headless-config", "t5")


def fake(monkeypatch: pytest.MonkeyPatch, *, init: Exception | None = None, version: Any = VERSION) -> list[str]:
    """A Ray that starts or fails, whose workers have a version or an error; returns what was asked of it."""
    asked: list[str] = []
    made = ModuleType("ray")

    def start(**options: Any) -> None:
        asked.append(f"init {options['address']}")
        if init:
            raise init

    def get(reference: Any) -> Any:
        if isinstance(version, Exception):
            raise version
        return version

    made.__dict__.update(init=start, get=get, cluster_resources=lambda: {"CPU": 3.0})
    made.remote = lambda **options: lambda work: SimpleNamespace(remote=lambda *words: None)  # type: ignore[attr-defined]
    made.shutdown = lambda: asked.append("shutdown")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", made)
    return asked


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One sentence and the command that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="the engine ray needs the package ray") as raised:
        RayExecutor()
    assert "ray" in raised.value.hint
    assert "the engine ray needs the package ray" in refused("check", MODELS / "t5", "--engine", "ray")
    assert "the engine ray needs" in refused("fleet check", MODELS, "-o", tmp_path / "r", "--engine", "ray")


def test_an_address_needs_ray() -> None:
    assert "--address needs --engine ray" in refused("check", MODELS / "t5", "--address", "auto")


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
def test_nothing_answers(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Said at once: Ray itself would try for many minutes."""
    asked = fake(monkeypatch)
    with pytest.raises(SettingsError, match="does not answer") as raised:
        RayExecutor(address)
    assert (raised.value.code, asked) == ("ray.connect", [])


def test_a_cluster_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line is the cause, with control characters escaped."""
    fake(monkeypatch, init=RuntimeError("traceback\nInvalidAuthToken \x1b[31m\n"))
    with pytest.raises(SettingsError, match="on this machine cannot be used: InvalidAuthToken") as raised:
        RayExecutor()
    assert "\x1b" not in raised.value.message


@pytest.mark.parametrize(
    ("version", "message"),
    [("0.0.9", "have tieconv 0.0.9, not"), (ModuleNotFoundError("No module named 'tieconv'"), "cannot run tieconv")],
)
def test_workers_that_differ(monkeypatch: pytest.MonkeyPatch, version: Any, message: str) -> None:
    """Before a model is read; the connection is closed."""
    asked = fake(monkeypatch, version=version)
    with pytest.raises(SettingsError, match=message) as raised:
        RayExecutor()
    assert raised.value.code == "ray.worker" and f"install tieconv {VERSION}" in raised.value.hint
    assert asked == ["init None", "shutdown"]


def test_every_cpu_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    assert RayExecutor().workers == 3


def _kill_some(name: str) -> str:
    """Kill the worker for a name with "poison", as a crash of a reader would."""
    if "poison" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    return name.upper()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two machines on this one, each with one CPU."""
    pytest.importorskip("ray", reason="the package ray is not installed")
    from ray.cluster_utils import Cluster

    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("PYTHONPATH", str(Path(tieconv.__file__).parents[1]))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.second = made.add_node(num_cpus=1)
        yield made
        made.shutdown()


def findings(directory: Path) -> dict[str, list[str]]:
    """The rules of each model's findings."""
    lines = (json.loads(line) for line in (directory / "check.jsonl").read_text().splitlines())
    models = [line["report"]["models"][0] for line in lines]
    return {model["source"]: sorted(finding["rule"] for finding in model["findings"]) for model in models}


@pytest.mark.slow
def test_the_same_findings(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of relative paths too, with one line a model, and nothing printed by Ray."""
    for number in range(12):
        shutil.copytree(MODELS / NAMES[number % 4], tmp_path / "fleet" / f"m{number:02}")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "tieconv", "fleet", "check", "fleet", "-q"]
    done = subprocess.run(
        [*command, "-o", "far", "--engine", "ray", "--address", cluster.address],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    ok("fleet check fleet -o near -q")
    assert findings(tmp_path / "far") == findings(tmp_path / "near")
    assert len(findings(tmp_path / "far")) == 12


@pytest.mark.slow
def test_a_killed_worker_loses_its_own_task(cluster: Any) -> None:
    """The tasks beside it in its batch are done, and it is reported as lost."""
    names = [f"n{number}" for number in range(30)]
    names[7] = "poison"
    with RayExecutor(cluster.address) as executor:
        done = dict(unordered(_kill_some, names, Workers(2, executor), lambda name: f"lost {name}"))
    assert done == {number: "lost poison" if name == "poison" else name.upper() for number, name in enumerate(names)}


def _slow(name: str) -> str:
    time.sleep(0.3)
    return name.upper()


@pytest.mark.slow
def test_a_lost_machine_costs_time_alone(cluster: Any) -> None:
    """Its tasks run again on the other one."""
    names = [f"n{number}" for number in range(24)]
    with RayExecutor(cluster.address) as executor:
        results = unordered(_slow, names, Workers(2, executor), lambda name: "lost")
        done = dict([next(results)])
        cluster.remove_node(cluster.second)
        done |= dict(results)
    assert done == {number: name.upper() for number, name in enumerate(names)}


@pytest.mark.slow
def test_a_killed_driver_goes_on(cluster: Any, tmp_path: Path) -> None:
    """SIGKILL in the middle: the next run takes the models without a line, and every model has its findings."""
    for number in range(160):
        shutil.copytree(MODELS / NAMES[number % 4], tmp_path / "fleet" / f"m{number:03}")
    command = [
        sys.executable, "-m", "tieconv", "fleet", "check", "fleet", "-o", "far", "--depth", "full", "-j", "1",
        "--engine", "ray", "--address", cluster.address,
    ]  # fmt: skip
    driver = children.start(command, cwd=tmp_path)
    results = tmp_path / "far" / "check.jsonl"
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 8, driver)
    driver.kill()
    driver.wait()
    done = results.read_bytes().count(b"\n")
    assert done < 160
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"{160 - done} read, {done} unchanged" in again.stderr
    assert len(findings(tmp_path / "far")) == 160


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "options"), [("inspect", []), ("convert", ["--to", "torch"])])
def test_commands_of_a_fleet(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, options: list[str]
) -> None:
    """The answers of processes of this machine; the copies are where the caller's relative path says."""
    monkeypatch.chdir(tmp_path)
    for name in ("llama-tied", "t5"):
        shutil.copytree(MODELS / name, tmp_path / "fleet" / name)
    command = [sys.executable, "-m", "tieconv", "fleet", verb, "fleet", "-o", "far", "--engine", "ray"]
    done = subprocess.run(
        [*command, "--address", cluster.address, "--", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ok(f"fleet {verb} fleet -o near -q --", *options)
    far, local = (
        {entry["source"]: entry for entry in map(json.loads, Path(runs, f"{verb}.jsonl").read_text().splitlines())}
        for runs in ("far", "near")
    )
    assert len(far) == 2
    for source, entry in far.items():
        if verb == "inspect":
            assert entry["report"] == local[source]["report"]
        else:
            copies = (Path(end["output"], "pytorch_model.bin").read_bytes() for end in (entry, local[source]))
            assert len(set(copies)) == 1
