"""moto's S3 behind a layer that counts, delays and spoils: answers that this project did not write, under faults."""

from __future__ import annotations

import os
import shutil
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import ok
from tests.hub.models import ROWS, WIDTH, noise, same_head, sharded
from tieconv import TieconvError, UnreadableError, check, diff, inspect, plan_retie

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
NAMES = ("bart", "llama-duplicated", "llama-headless-config", "llama-tied", "t5")
Answer = Iterable[bytes]


@dataclass
class Layer:
    """Stands before a server. The first ``times`` requests whose path has ``where`` are spoiled as ``kind`` says."""

    server: Callable[..., Answer]
    kind: str = ""
    where: str = ""
    times: int = 0
    delay: float = 0.0
    requests: list[tuple[str, str]] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def spoil(self, kind: str, where: str, times: int) -> None:
        """Set the fault, and forget what was asked."""
        self.kind, self.where, self.times = kind, where, times
        self.requests.clear()
        self.sent.clear()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Answer:
        path = str(environ["PATH_INFO"])
        with self.lock:
            self.requests.append((environ["REQUEST_METHOD"], path))
            bad = self.times > 0 and self.where in path
            self.times -= bad
        time.sleep(self.delay)
        if bad and self.kind.startswith("503"):
            headers = [("Content-Length", "0"), *([("Retry-After", "1")] if "Retry-After" in self.kind else [])]
            start("503 Slow Down", headers)
            return [b""]
        if bad and self.kind == "shifted" and (asked := str(environ.get("HTTP_RANGE", ""))):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            environ["HTTP_RANGE"] = f"bytes={int(first) + 8}-{int(last) + 8 if last else ''}"
        body = b"".join(self.server(environ, start))
        self.sent[path] += len(body)
        return [body[: len(body) // 2]] if bad and self.kind == "truncated" else [body]


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layer]:
    """The layer before a running moto with an empty bucket, to which this process is pointed."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")
    pytest.importorskip("flask_cors", reason="moto's server needs flask-cors")
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    from tieconv.sources.objects import client as object_client

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.0"  # a body that ends early closes the connection

        def log(self, *_: object) -> None: ...

    made = Layer(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, made, threaded=True, request_handler=Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    url = f"http://127.0.0.1:{server.port}"
    for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "absent"))
    monkeypatch.setattr(object_client, "_stores", {})
    monkeypatch.setattr(object_client, "SILENCE", timedelta(seconds=5))
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST"))  # it keeps the last bucket
    boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket="bucket")
    yield made
    server.shutdown()


def put(prefix: str, directory: Path, acl: str = "private") -> None:
    """Store the files of a directory."""
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    for path in directory.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "bucket", f"{prefix}/{path.relative_to(directory)}", {"ACL": acl})


def rules(report: Any) -> dict[str, list[str]]:
    return {
        model.source.rpartition("/")[2]: [entry.finding.rule for entry in model.findings] for model in report.models
    }


def test_a_fleet_has_the_local_findings(layer: Layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a delay of 20 ms, in two processes, and at most four requests and 100 kB a model."""
    for name in NAMES:
        put(f"models/{name}", MODELS / name)
        shutil.copytree(MODELS / name, tmp_path / "models" / name)
    layer.spoil("", "", 0)
    layer.delay = 0.02
    report = check("s3://bucket/models/", jobs=2)
    assert rules(report) == rules(check(tmp_path / "models"))
    asked = Counter(path.split("/")[3] for _, path in layer.requests if path.startswith("/bucket/models/"))
    sent = Counter[str]()
    for path, length in layer.sent.items():
        sent[path.split("/")[3] if path.startswith("/bucket/models/") else ""] += length
    assert set(asked) == set(NAMES) and max(asked.values()) <= 4
    assert max(sent[name] for name in NAMES) <= 100_000
    monkeypatch.chdir(tmp_path)
    ok("fleet check s3://bucket/models/ -o runs -q")
    layer.spoil("", "", 0)
    assert "5 unchanged" in ok("fleet check s3://bucket/models/ -o runs").stderr
    assert not [path for _, path in layer.requests if path.endswith((".json", ".safetensors"))]


@pytest.mark.parametrize(
    ("kind", "where", "times"),
    [
        ("503", "model.safetensors", 2),
        ("503", "config.json", 1),
        ("503 Retry-After", "model.safetensors", 1),
        ("truncated", "model.safetensors", 1),
    ],
)
def test_a_fault_that_passes_changes_nothing(layer: Layer, kind: str, where: str, times: int) -> None:
    """The request is made again, and the evidence is the local one."""
    put("m", MODELS / "llama-duplicated")
    layer.spoil(kind, where, times)
    assert inspect("s3://bucket/m", depth="full").findings[0].rule == "TIE002"
    assert layer.times == 0
    assert len([path for _, path in layer.requests if where in path]) > times


@pytest.mark.parametrize(("kind", "code"), [("503", "objects.http"), ("shifted", "objects.content-range")])
def test_a_fault_that_stays_is_refused(layer: Layer, tmp_path: Path, kind: str, code: str) -> None:
    """In one sentence, and no answer from other bytes."""
    put("m", sharded(tmp_path / "m", 2))
    layer.spoil(kind, "model-00001-of-00002.safetensors", 1000)
    with pytest.raises(UnreadableError) as raised:
        inspect("s3://bucket/m")
    assert raised.value.code == code and "model-00001-of-00002.safetensors" in raised.value.message


def test_gs_lists_in_the_form_of_s3(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server of Google's storage was to be had; its XML interface has the listing of S3, so moto can answer."""
    put("m", MODELS / "llama-duplicated", "public-read")
    monkeypatch.setenv("GOOGLE_BASE_URL", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    layer.spoil("503", "model.safetensors", 1)
    inspection = inspect("gs://bucket/m", depth="full")
    assert [finding.rule for finding in inspection.findings] == ["TIE002"]
    assert layer.times == 0


def test_a_model_is_retied_by_copies(layer: Layer, tmp_path: Path) -> None:
    """Busy answers are repeated; the written model is the one that is written locally, and most bytes are copied."""
    big = sharded(tmp_path / "big", 4, head=same_head(), tied=True)
    put("big", big)
    layer.spoil("503", "/bucket/out/", 3)
    outcome = plan_retie("s3://bucket/big").execute("s3://bucket/out")
    assert layer.times == 0
    assert outcome.remote is not None and outcome.remote.method == "server_copy"
    plan_retie(big).execute(tmp_path / "local")
    assert diff("s3://bucket/out", tmp_path / "local").same_function
    with pytest.raises(TieconvError) as raised:
        plan_retie("s3://bucket/big").execute("s3://bucket/out")
    assert raised.value.code == "out.exists"


def test_a_write_that_fails_leaves_no_model(layer: Layer, tmp_path: Path) -> None:
    """The prefix has no config and no index, so nothing loads it."""
    import boto3

    put("big", sharded(tmp_path / "big", 2, head=noise(ROWS * WIDTH * 2, 1), tied=True))
    layer.spoil("503", "/bucket/out/model-00002", 1000)
    with pytest.raises(TieconvError):
        plan_retie("s3://bucket/big").execute("s3://bucket/out")
    layer.spoil("", "", 0)
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    names = {entry["Key"] for entry in client.list_objects_v2(Bucket="bucket", Prefix="out/").get("Contents", [])}
    assert not {name for name in names if name.endswith(".json")}
