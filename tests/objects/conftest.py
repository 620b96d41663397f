"""A running stub store, and the variables that point tieconv at it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.objects.stub import Store, start
from tests.quick_python import Server

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "fixtures" / "models"
SECRETS = ("AKIAKEYID", "verysecretkey", "secret words", "127.0.0.1")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """An empty store. This process uses it for ``s3://bucket`` and ``gs://bucket``, with short waits."""
    from tieconv.sources.objects import client as object_client

    running, stop = start()
    point_at(running, monkeypatch, tmp_path)
    monkeypatch.setattr(object_client, "SILENCE", timedelta(seconds=0.5))
    yield running
    stop()


def point_at(store: Store, monkeypatch: pytest.MonkeyPatch, home: Path, retries: int = 2) -> None:
    """Make this process use the store, and no variable of the machine."""
    from tieconv.sources.objects import client as object_client

    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in variables(store, home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_client, "_stores", {})
    monkeypatch.setattr(object_client, "RETRIES", retries)


def variables(store: Store, home: Path) -> dict[str, str]:
    """The variables that the AWS and Google tools read."""
    return {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ACCESS_KEY_ID": "AKIAKEYID",
        "AWS_SECRET_ACCESS_KEY": "verysecretkey",
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(home / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "no-credentials"),
        "GOOGLE_BASE_URL": store.url,
        "GOOGLE_SKIP_SIGNATURE": "true",
        "NO_PROXY": "127.0.0.1",
    }


@pytest.fixture
def tieconv(store: Store, tmp_path: Path, quick_python: Server) -> Run:
    """``tieconv`` with these words in a process of its own; keywords are environment variables."""

    def call(*words: str | Path, stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more}
        return quick_python.run(["-m", "tieconv", *map(str, words)], env=environment, cwd=tmp_path, stdin=stdin)

    return call
