"""Run tasks on a cluster of Ray, as an executor of `concurrent.futures`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait as wait_for
from typing import Any

from tieconv.errors import SettingsError
from tieconv.reference.packages import need
from tieconv.text import shown
from tieconv.version import VERSION

RETRIES = 2
"""How often Ray runs a task again whose worker or machine was lost."""
PATIENCE = 5.0
"""Seconds in which the port of an address must answer. Ray itself tries for many minutes."""
_QUIET = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


_HINT = "look at the cluster with ray status"


class RayExecutor(Executor):
    """A connection to the cluster at ``address``, by default that of ``RAY_ADDRESS``, or a new one on this machine.

    Workers get tasks and addresses, and no variable of this process. They need the same version of tieconv. Raises
    `MissingPackageError` without the package ray, and `SettingsError` if the cluster cannot be used.
    """

    def __init__(self, address: str | None = None) -> None:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        self._ray = need("ray", "ray", "the engine ray")
        self._running: dict[Future[Any], Any] = {}
        _check_port(address or os.environ.get("RAY_ADDRESS", ""))
        try:
            with warnings.catch_warnings(), _silent():
                warnings.simplefilter("ignore")
                self._ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
        except Exception as error:  # ray raises ConnectionError, RuntimeError, ValueError and its own classes
            where = f"at {shown(address)}" if address else "on this machine"
            raise SettingsError(f"Ray {where} cannot be used: {_line(error)}", _HINT, "ray.connect") from error
        try:
            self._check_workers()
            self.workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        except BaseException:
            self._ray.shutdown()
            raise
        self._call = self._ray.remote(max_retries=RETRIES, num_cpus=1)(_call)

    def _check_workers(self) -> None:
        hint = f"install tieconv {VERSION} on every machine of the cluster"
        try:
            version = self._ray.get(self._ray.remote(max_retries=RETRIES)(_version).remote())
        except Exception as error:  # whatever a worker raises
            raise SettingsError(f"Ray's workers cannot run tieconv: {_line(error)}", hint, "ray.worker") from error
        if version != VERSION:
            raise SettingsError(f"Ray's workers have tieconv {shown(version)}, not {VERSION}", hint, "ray.worker")

    def submit(self, work: Callable[..., Any], /, *words: Any, **options: Any) -> Future[Any]:
        """Start a task. Its future has the error of Ray if its workers were lost `RETRIES` times more."""
        reference = self._call.remote(os.getcwd(), work, words, options)
        future: Future[Any] = reference.future()
        self._running[future] = reference
        future.add_done_callback(lambda done: self._running.pop(done, None))
        return future

    def __exit__(self, *error: object) -> None:
        """Leave the cluster, whatever still runs: an interrupt must not wait for it."""
        self.shutdown(wait=False, cancel_futures=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the tasks that still run, or cancel them. Then leave the cluster; one that started here ends."""
        if wait and not cancel_futures:
            wait_for(list(self._running))
        for reference in list(self._running.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)
        self._running.clear()
        with _silent():
            self._ray.shutdown()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide what Ray's C++ code prints to stderr. An exception gives the cause of a failure."""
    sys.stderr.flush()
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def _check_port(address: str) -> None:
    """Raise `SettingsError` if nothing answers at HOST:PORT. Other addresses, such as ``auto``, are left to Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise SettingsError(f"Ray at {shown(address)} does not answer: {shown(error)}", _HINT, "ray.connect") from error


def _call(directory: str, work: Callable[..., Any], words: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return ``work(*words, **options)``, where relative paths are those of the caller, if the directory exists."""
    with contextlib.suppress(OSError):
        os.chdir(directory)
    return work(*words, **options)


def _version() -> str:
    from tieconv.version import VERSION as INSTALLED

    return INSTALLED


def _line(error: Exception) -> str:
    """Return the last line of an error, which has its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shown(lines[-1] if lines else type(error).__name__, 300)
