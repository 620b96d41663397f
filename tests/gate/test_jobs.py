"""Several processes: results in order, errors of the work, and a process that dies."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import signal
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from unittest import mock

import pytest

import tieconv
from tests.patience import HANGS
from tieconv.api.check import find_policy
from tieconv.errors import RefusedError, UnreadableError
from tieconv.gate import workers
from tieconv.gate.examine import check_models, examine
from tieconv.gate.workers import Workers, each

pytestmark = pytest.mark.needs("_multiprocessing")

PATHS = [f"model-{number}" for number in range(12)]


def work(path: str) -> str:
    """The path in capitals; special paths end their process, raise or take time."""
    if path.endswith("-killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if path.endswith("-left"):
        os._exit(3)
    if path.endswith("-refused"):
        raise RefusedError("refused", "hint", "code")
    if path.endswith("-slow"):
        time.sleep(0.3)
    if path.endswith("-deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(HANGS)
    if path.endswith("-noted"):
        Path(path).write_text("")
        multiprocessing.util.Finalize(None, Path(path).write_text, ("ended",), exitpriority=1)
    if path.endswith("-stuck"):
        time.sleep(HANGS)
    return path.upper()


def lost(path: str) -> str:
    return f"lost {path}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("jobs", [1, 2, 5, 40])
def test_results_are_in_order(jobs: int, clean: bool) -> None:
    """Whichever is ready first."""
    paths = ["first-slow", *PATHS]
    assert list(each(work, paths, Workers(jobs, clean=clean), lost)) == [path.upper() for path in paths]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("end", ["killed", "left"])
def test_a_process_that_dies_costs_its_path(end: str, clean: bool) -> None:
    """The others are done by a new process."""
    paths = [*PATHS[:5], f"a-{end}", *PATHS[5:], f"b-{end}", f"c-{end}"]
    expected = [f"lost {path}" if path.endswith(end) else path.upper() for path in paths]
    assert list(each(work, paths, Workers(2, clean=clean), lost)) == expected


def _variable(path: str) -> str:
    return os.environ.get("TIECONV_TEST_VARIABLE", "")


@pytest.mark.parametrize("value", ["first", "second"])
@pytest.mark.parametrize("clean", [False, True])
def test_processes_have_the_environment_of_now(monkeypatch: pytest.MonkeyPatch, value: str, clean: bool) -> None:
    """Not that of the first run."""
    monkeypatch.setenv("TIECONV_TEST_VARIABLE", value)
    assert list(each(_variable, PATHS[:3], Workers(2, clean=clean), lost)) == [value] * 3


def test_every_process_dies() -> None:
    paths = [f"{path}-killed" for path in PATHS]
    assert list(each(work, paths, Workers(3), lost)) == [f"lost {path}" for path in paths]


def test_an_error_of_the_work_is_raised() -> None:
    """In the place of its result, and the processes end."""
    results = each(work, [*PATHS[:3], "a-refused", *PATHS[3:]], Workers(2), lost)
    assert [next(results) for _ in range(3)] == [path.upper() for path in PATHS[:3]]
    with pytest.raises(RefusedError, match="refused"):
        next(results)


def test_a_caller_that_stops_waits_for_no_model() -> None:
    """The processes are ended."""
    results = each(work, ["now", "later-stuck", "a-stuck", "b-stuck"], Workers(2), lost)
    assert next(results) == "NOW"
    began = time.monotonic()
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < HANGS


def test_a_process_that_does_not_heed_the_signal_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that missed SIGTERM, and waits for a lock for ever, ends too."""
    monkeypatch.setattr(workers, "_GRACE", 0.1)
    graces: list[float] = []
    original = multiprocessing.connection.wait
    monkeypatch.setattr(
        multiprocessing.connection, "wait",
        lambda objects, timeout=None: graces.append(timeout) or original(objects, timeout),
    )  # fmt: skip
    results = each(work, ["now", *[f"{number}-deaf" for number in range(6)]], Workers(4), lost)
    assert next(results) == "NOW"
    graces.clear()
    began = time.monotonic()
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < HANGS / 2
    assert graces.count(0.1) <= 1, "each process got the whole time"
    assert not multiprocessing.active_children()


def test_processes_that_are_done_get_no_signal(tmp_path: Path) -> None:
    """Each ends by itself, and so runs what it has to at its end."""
    assert list(each(work, [str(tmp_path / "a-noted"), str(tmp_path / "b-noted")], Workers(2), lost))
    assert len(list(tmp_path.iterdir())) > 0
    assert not [path for path in tmp_path.iterdir() if path.read_text() != "ended"]


class Cluster(Executor):
    """An executor that counts its tasks, and loses those with a path that ends in ``-gone``."""

    def __init__(self) -> None:
        self.running = self.most = self.tasks = 0
        self.threads = ThreadPoolExecutor(2)

    def submit(self, function, /, *arguments):  # type: ignore[no-untyped-def]
        self.tasks += 1
        self.running += 1
        self.most = max(self.most, self.running)

        def run() -> object:
            if any(path.endswith("-gone") for path in arguments[1]):
                raise ConnectionError("the worker is gone")
            return function(*arguments)

        future: Future[object] = self.threads.submit(run)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        self.running -= 1


def test_an_executor_does_the_work_in_a_window() -> None:
    """Several paths a task, few tasks in flight; a lost worker costs its path alone."""
    cluster, paths = Cluster(), [*(f"model-{number}" for number in range(400)), "a-gone", *PATHS]
    expected = [f"lost {path}" if path.endswith("-gone") else path.upper() for path in paths]
    assert list(each(work, paths, Workers(3, executor=cluster), lost)) == expected
    assert cluster.tasks < len(paths) / 3
    assert 3 <= cluster.most <= 6


def test_a_broken_executor_of_the_caller_raises() -> None:
    """It can take no more work, and tieconv does not replace it."""
    with ProcessPoolExecutor(1) as pool, pytest.raises(BrokenProcessPool):
        list(each(work, ["a-killed", *PATHS], Workers(1, executor=pool), lost))


def test_check_takes_an_executor(models: Path) -> None:
    """The same findings as without."""
    paths = [models / "t5", models / "llama-duplicated", models / "bart"]
    with ThreadPoolExecutor(2) as threads:
        assert tieconv.check(paths, executor=threads, jobs=2) == tieconv.check(paths)


def _inspect(path: str) -> object:
    if path.endswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    from tieconv import inspect

    return inspect(path)


FAILURES = (
    (UnreadableError("torn", "fetch it again", "a.code", source="m"), ("m: torn", "fetch it again")),
    (MemoryError(), ("m: out of memory", "close other programs")),
    (RecursionError(), ("m: it chains or nests more parts than Python follows", "store it again with fewer")),
    (PermissionError(13, "Permission denied", "m/a.bin"), ("m/a.bin: permission denied", "check the path, its perm")),
    (OSError(5, "Input/output error"), ("m: input/output error", "check the path")),
    (OSError("No disk"), ("m: no disk", "check the path")),
    (KeyError("x"), ("m: unexpected KeyError: 'x'", "this is a bug in tieconv")),
)


@pytest.mark.parametrize(("error", "failure"), FAILURES)
def test_an_error_costs_one_model(error: Exception, failure: tuple[str, str]) -> None:
    """Its sentence names the file, if the system does, else the model. What concerns all models is raised."""
    outcome = examine(mock.Mock(side_effect=error), "m").failure
    assert outcome is not None
    assert (outcome.message, outcome.hint[: len(failure[1])]) == failure
    for whole in (RefusedError("no"), UnreadableError("no such loader", "", "consumers.unknown")):
        with pytest.raises(type(whole)):
            examine(mock.Mock(side_effect=whole), "m")


def test_a_killed_process_is_a_model_that_was_not_read(models: Path) -> None:
    """Its row has the failure, the others their findings, and the exit code is 2."""
    paths = [str(models / "t5"), "/nowhere/killed", str(models / "llama-duplicated"), str(models / "bart")]
    report, _ = check_models(_inspect, find_policy(paths, no_config=True), paths, 2, lambda _: None)  # type: ignore[arg-type]
    assert report.exit_code == 2
    assert [model.source for model in report.models] == paths
    [failure] = [model.failure for model in report.models if model.failure]
    assert failure.message == "/nowhere/killed: the process that read it was killed"
    assert "--jobs 1" in failure.hint
    assert [len(model.findings) for model in report.models] == [0, 0, 1, 0]
