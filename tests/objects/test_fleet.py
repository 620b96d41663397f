"""`fleet check` of an object store: the findings of the local models, by ranges, and changed models alone again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.children import sound
from tests.objects.conftest import MODELS, Run
from tests.objects.stub import Fault, Store

NAMES = ("llama-tied", "llama-duplicated", "llama-headless-config", "t5")


@pytest.fixture(autouse=True)
def bucket(store: Store) -> None:
    """Four models, two of which have a finding."""
    for name in NAMES:
        store.add(f"models/{name}", MODELS / name)


def findings(directory: Path) -> dict[str, list[str]]:
    """The rules of each model's findings, by the last word of its address. A later line replaces an earlier one."""
    found = {}
    for line in (directory / "check.jsonl").read_text().splitlines():
        (model,) = json.loads(line)["report"]["models"]
        found[model["source"].rpartition("/")[2]] = sorted(finding["rule"] for finding in model["findings"])
    return found


def report(tieconv: Run, tmp_path: Path) -> dict[str, object]:
    return dict(json.loads(tieconv("fleet", "report", tmp_path / "runs", "--json", "--no-config").stdout))


def test_the_findings_are_the_local_ones(store: Store, tieconv: Run, tmp_path: Path) -> None:
    """From one listing of all, and at most four requests and 100 kB a model."""
    for name in NAMES:
        shutil.copytree(MODELS / name, tmp_path / "local" / name)
    assert tieconv("fleet", "check", tmp_path / "local", "-o", tmp_path / "here", "-q").returncode == 0
    sound(tieconv("fleet", "check", "s3://bucket/models/", "-o", tmp_path / "there", "-q"))
    assert findings(tmp_path / "there") == findings(tmp_path / "here")
    assert findings(tmp_path / "there")["llama-duplicated"] == ["TIE002"]
    requests, sent = Counter[str](), Counter[str]()
    for request in store.requests:
        for name in NAMES:
            if f"models/{name}/" in request.key:
                requests[name] += 1
                sent[name] += request.sent
    assert set(requests) == set(NAMES)
    assert max(requests.values()) <= 4 and max(sent.values()) <= 100_000


def test_a_changed_model_is_read_again(store: Store, tieconv: Run, tmp_path: Path) -> None:
    """The second run reads no object; after one config changed, it reads those of that model alone."""
    words = ("fleet", "check", "s3://bucket/models/", "-o", tmp_path / "runs", "-q")
    assert tieconv(*words).returncode == 0
    store.requests.clear()
    assert tieconv(*words).returncode == 0
    assert not [request for request in store.requests if "models/" in request.key and "." in request.key]
    config = json.loads(store.objects["models/llama-tied/config.json"])
    store.objects["models/llama-tied/config.json"] = json.dumps(config | {"tie_word_embeddings": False}).encode()
    store.requests.clear()
    assert tieconv(*words).returncode == 0
    read = {request.key.split("/")[1] for request in store.requests if "models/" in request.key and "." in request.key}
    assert read == {"llama-tied"}
    assert findings(tmp_path / "runs")["llama-tied"] != []
    assert report(tieconv, tmp_path)["models"] == len(NAMES)


def test_one_broken_model_does_not_end_the_run(store: Store, tieconv: Run, tmp_path: Path) -> None:
    """The others are finished; the next run tries the broken one again."""
    store.faults["models/t5/config.json"] = Fault("status", value="403")
    words = ("fleet", "check", "s3://bucket/models/", "-o", tmp_path / "runs", "-q")
    assert tieconv(*words).returncode == 2
    first = report(tieconv, tmp_path)
    assert (first["models"], first["unread"]) == (len(NAMES), 1)
    del store.faults["models/t5/config.json"]
    assert tieconv(*words).returncode == 0
    assert report(tieconv, tmp_path)["unread"] == 0


def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary".ljust(100, "_")  # longer than the address of a socket may be
    folder.mkdir(exist_ok=True)
    return folder


def left(tmp_path: Path) -> list[str]:
    """What is in the temporary directory, without what multiprocessing makes for its sockets."""
    return [name for name in os.listdir(temporary(tmp_path)) if not name.startswith("pymp-")]


COPIES = {
    "fleet convert s3://bucket/models/ -o runs -q -j 2 -- --to torch": 2,
    "fleet analyze s3://bucket/models/ -o runs -q -j 2": 2,
    "analyze s3://bucket/models/llama-duplicated -q": 0,
    "convert s3://bucket/models/llama-duplicated -q -o out --to torch": 0,
    "convert s3://bucket/models/t5 -q -o out --to torch": 2,
}
"""Commands that copy models to the temporary directory, and their exit codes: t5 cannot be read."""


@pytest.mark.parametrize(
    "words", [next(iter(COPIES)), *(pytest.param(each, marks=pytest.mark.slow) for each in list(COPIES)[1:])]
)
def test_no_copy_stays(store: Store, tieconv: Run, tmp_path: Path, words: str) -> None:
    """Each copy goes with its command, also when that fails."""
    store.faults["models/t5/model.safetensors"] = Fault("status", value="403", after=1)
    result = tieconv(*words.split(), TMPDIR=str(temporary(tmp_path)))
    assert result.returncode == COPIES[words], result.stderr
    assert left(tmp_path) == []
    if words.startswith("fleet convert"):
        assert len(list((tmp_path / "runs" / "convert").iterdir())) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("words", ["fleet convert", "convert", "analyze"])
def test_a_signal_leaves_no_copy(store: Store, tmp_path: Path, words: str, number: signal.Signals) -> None:
    """While one file of a model waits for its server. After SIGKILL, the next command removes the copy."""
    store.faults["models/llama-tied/model.safetensors"] = Fault("stalls", value="60", after=1)
    source = "s3://bucket/models/llama-tied"
    options = {"fleet convert": ["-o", "runs", "--", "--to", "torch"], "convert": ["-o", "out", "--to", "torch"]}
    environment = {**os.environ, "TMPDIR": str(temporary(tmp_path)), "PYTHONPATH": str(MODELS.parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tieconv", *words.split(), source, *options.get(words, [])],
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: [signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
                            for each in (signal.SIGINT, signal.SIGTERM)],
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not any(name.startswith("tieconv-") for name in left(tmp_path)):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(60)
        again = [sys.executable, "-P", "-m", "tieconv", "analyze", "-q", "s3://bucket/models/llama-duplicated"]
        until = time.monotonic() + 60
        while left(tmp_path) and time.monotonic() < until:  # a worker ends itself when its parent has ended
            if number == signal.SIGKILL:
                store.faults.clear()
                subprocess.run(again, env=environment, cwd=tmp_path, check=True, capture_output=True)
            time.sleep(0.1)
        assert left(tmp_path) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
