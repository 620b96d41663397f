"""What goes wrong while files are fetched into the cache: our sentence alone, and nothing but a sound cache is left."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import children
from tests.children import wait_until
from tests.hub.conftest import TOKEN, Run, refused
from tests.hub.models import sharded
from tests.hub.stub import Fault, Hub
from tests.patience import HANGS

NOTES = "notes.data"  # an LFS file that a plan does not read, and a fetch brings


@pytest.fixture
def model(hub: Hub, models: Path, tmp_path: Path) -> Path:
    path = Path(shutil.copytree(models / "llama-tied", tmp_path / "m"))
    (path / NOTES).write_bytes(bytes(range(256)) * 4096)
    hub.add("org/m", path)
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("truncate", "", "connection to the Hub failed"),
        ("hang-up", "", "connection to the Hub failed"),
        ("status", "429", "no more requests for now"),
        ("status", "403", "may not read this model"),
        ("too-long", "", "the server sent more than 1,048,576 bytes"),
    ],
)
def test_no_address_is_repeated(kind: str, value: str, says: str, model: Path, hub: Hub, tieconv: Run) -> None:
    """huggingface_hub's log names signed addresses of the storage; of a fetch that fails one sentence is said."""
    hub.faults[NOTES] = Fault(kind, value=value)
    error, _ = refused(tieconv("untie", "hf://org/m", "-o", "out", HF_TOKEN=TOKEN))
    assert says in error and hub.storage not in error
    assert not list(model.parent.glob("*out*"))
    hub.faults.clear()
    assert tieconv("untie", "hf://org/m", "-o", "out").returncode == 0
    assert (model.parent / "out" / NOTES).read_bytes() == (model / NOTES).read_bytes()


def test_fault_that_passes(model: Path, hub: Hub, tieconv: Run) -> None:
    """A transfer that huggingface_hub takes up again says nothing of it."""
    quiet = tieconv("untie", "hf://org/m", "-o", "first")
    shutil.rmtree(model.parent / "hf-home")
    hub.faults[NOTES] = Fault("truncate", 1)
    result = tieconv("untie", "hf://org/m", "-o", "again")
    assert (result.returncode, result.stderr) == (0, quiet.stderr.replace("first", "again"))
    assert hub.faults[NOTES].times == 0


def test_uploads_repeat_no_address(model: Path, hub: Hub, models: Path, tieconv: Run) -> None:
    """Where to upload is a signed address too."""
    hub.faults["upload"] = Fault("status", 1, "503")
    result = tieconv("push", models / "llama-untied", "hf://org/m", "--yes", HF_TOKEN=TOKEN)
    assert result.returncode == 0, result.stderr
    assert hub.faults["upload"].times == 0 and hub.storage not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_asked_to_wait_for_long(model: Path, hub: Hub, tieconv: Run) -> None:
    """A server that asks for an hour is not waited for: the user is told."""
    hub.faults[NOTES] = Fault("retry-after", value="3600")
    _, hint = refused(tieconv("untie", "hf://org/m", "-o", "out"))
    assert "3600 seconds" in hint


def test_end_of_the_window() -> None:
    """The Hub says in `RateLimit` when it takes requests again; a window that is not used up asks for no wait."""
    from types import SimpleNamespace

    from huggingface_hub import HfApi  # noqa: F401 - its headers are a mapping without regard to case

    from tieconv.sources.hub.session import retry_after

    def asked(**headers: str) -> float | None:
        return retry_after(SimpleNamespace(headers=headers))

    assert asked(ratelimit='"api";r=0;t=55') == 55
    assert asked(ratelimit='"api";r=7;t=55') is None
    assert asked(**{"Retry-After": "3", "ratelimit": '"api";r=0;t=55'}) == 3
    assert retry_after(None) is None


def test_cache_that_cannot_be_written(model: Path, tieconv: Run, tmp_path: Path) -> None:
    """That is no fault of the network, and what the disk says is passed on."""
    (tmp_path / "file").write_text("")
    error, hint = refused(tieconv("untie", "hf://org/m", "-o", "out", HF_HUB_CACHE=str(tmp_path / "file" / "hub")))
    assert "the local cache cannot be used: not a directory" in error and "HF_HOME" in hint


def test_full_disk() -> None:
    """A disk that is full is told as one."""
    import errno

    from tieconv.sources.hub.session import translate

    told = translate(OSError(errno.ENOSPC, "x", "/cache"), "hf://org/m")
    assert told.message.endswith("no space left on device") and told.code == "hub.cache"


def test_moved_while_it_was_listed(hub: Hub, tieconv: Run, environment: dict[str, str], tmp_path: Path) -> None:
    """A branch that moves between the listing and the fetch stops it: its files may have other names."""
    hub.add("org/m", sharded(tmp_path / "m", shards=2, tied=True))
    program = (
        "from tieconv.sources.hub import files as hub_cache\n"
        "import huggingface_hub as h, os\n"
        "old = hub_cache.snapshot_download\n"
        "def moved(*a, **k):\n"
        "    root = old(*a, **k)\n"
        "    new = os.path.join(os.path.dirname(root), 'f' * 40)\n"
        "    os.rename(root, new)\n"
        "    return new\n"
        "hub_cache.snapshot_download = moved\n"
        "from tieconv.cli import main; main(['retie', 'hf://org/m', '-o', 'out'])"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert "has a new commit" in refused(result)[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [("inspect", "hf://org/s"), ("untie", "hf://org/m", "-o", "out")], ids=" ".join)
def test_interrupt(
    words: tuple[str, ...], model: Path, hub: Hub, tieconv: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """^C is heeded while a server is silent; nothing is in the place of OUT, and the cache is as good as before."""
    hub.add("org/s", sharded(tmp_path / "s", shards=3))
    for name in (NOTES, "model-00002-of-00003.safetensors"):
        hub.faults[name] = Fault("stall", value="60")
    process = children.start(
        [sys.executable, "-P", "-m", "tieconv", *words],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: any(fault.times < 1_000_000 for fault in hub.faults.values()), process)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out, err.strip()) == (130, "", "interrupted")
    assert not list(tmp_path.glob("*out*"))
    hub.faults.clear()
    assert tieconv(*words).returncode == 0
