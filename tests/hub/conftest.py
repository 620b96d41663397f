"""A running stub hub, and tieconv in a process of its own that knows it: the endpoint is read when it is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests import children
from tests.hub.stub import Hub, start
from tests.patience import HANGS
from tests.quick_python import Server

ROOT = Path(__file__).parents[2]
TOKEN = "hf_good"
SLOW = {
    "HF_DEBUG", "HF_HUB_CACHE", "HF_HUB_DISABLE_XET", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT", "PYTHONPATH",
}  # fmt: skip
"""What a library reads while it is imported, beyond what a quick process reads again: such a command starts anew."""
Run = Callable[..., subprocess.CompletedProcess[str]]

HASTY = (
    "import sys; from huggingface_hub import constants; from tieconv.sources.hub import client as hub_client\n"
    "hub_client.FIRST_PAUSE, hub_client.SPREAD = 0.003, 0.002\n"
    "constants.HF_HUB_DOWNLOAD_TIMEOUT = float(sys.argv.pop(1))\n"
    "from tieconv.cli import main; main()"
)


def refused(result: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """The error and its hint; nothing else was said."""
    assert result.returncode == 2, result.stdout
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], result.stderr
    for secret in (TOKEN, "secret words", "signed-secret"):
        assert secret not in result.stderr
    return lines[0], lines[1]


def interrupt(
    words: Sequence[str], hub: Hub, environment: dict[str, str], folder: Path, *, stalled: int = 1, group: bool = False
) -> None:
    """^C a command, or its group, once so many requests wait for a silent server: it ends at once and says so."""
    process = children.start(
        [sys.executable, "-P", "-m", "tieconv", *words],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children.wait_until(lambda: sum(1_000_000 - fault.times for fault in hub.faults.values()) >= stalled, process)
    time.sleep(0.2)
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out, err.strip()) == (130, "", "interrupted")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An empty hub."""
    found, stop = start()
    yield found
    stop()


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """What points huggingface_hub at the stub, with a cache of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "TIECONV"))}
    return {
        **kept,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf-home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",  # the stub takes uploads as LFS
        "HF_HUB_DOWNLOAD_TIMEOUT": "30",
        "HF_HUB_ETAG_TIMEOUT": "30",
        "PYTHONPATH": str(ROOT),
        "NO_PROXY": "127.0.0.1",
        "NO_COLOR": "1",
    }


@pytest.fixture
def interpreter(environment: dict[str, str], tmp_path: Path, quick_python: Server) -> Run:
    """Python with these words; keywords are environment variables."""

    def call(*words: str | Path, stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        variables = {**environment, **more}
        if (words[0] == "-m" or words[1] == HASTY) and SLOW.isdisjoint(more):
            # The stub is plain HTTP, and reading the authorities of the machine takes 25 ms. hf_xet needs some.
            without = {"SSL_CERT_FILE": "", "SSL_CERT_DIR": str(tmp_path)}
            return quick_python.run(list(map(str, words)), env=variables | without, cwd=tmp_path, stdin=stdin)
        return subprocess.run(
            [sys.executable, "-P", *map(str, words)],
            env=variables,
            cwd=tmp_path,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=HANGS,
        )

    return call


@pytest.fixture
def tieconv(interpreter: Run) -> Run:
    """``tieconv`` with these words."""
    return partial(interpreter, "-m", "tieconv")


@pytest.fixture
def python(interpreter: Run) -> Run:
    """A Python program."""
    return partial(interpreter, "-c")


@pytest.fixture
def hasty(python: Run) -> Run:
    """As ``tieconv``, with the pauses between retries cut to a hundredth, and a ``silence`` (seconds) of its own."""

    def call(*words: str | Path, silence: float = 30, **more: str) -> subprocess.CompletedProcess[str]:
        return python(HASTY, str(silence), *words, **more)

    return call
