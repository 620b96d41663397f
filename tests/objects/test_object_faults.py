"""What a server may do wrong: each is repaired by the library or refused in one sentence that repeats nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.hub.models import local, sharded, verdict
from tests.loops import case
from tests.objects.conftest import MODELS, SECRETS, Run, point_at
from tests.objects.stub import LIST, Fault, Store
from tests.objects.writable_stub import start_writable
from tests.refusals import failure_of
from tieconv import TieconvError, UnreadableError, inspect
from tieconv.api.check import expand
from tieconv.sources.objects import client as object_client, parse
from tieconv.sources.objects.writer import ObjectWriter

WEIGHTS = "m/model.safetensors"


@pytest.fixture(autouse=True)
def model(store: Store) -> None:
    """One sound model, below 64 KiB."""
    store.add("m", MODELS / "llama-untied")


def refusal(source: str = "s3://bucket/m") -> TieconvError:
    """The error for a model, which holds no text of the server and no secret."""
    error = failure_of(inspect, TieconvError, source)
    for secret in SECRETS:
        assert secret not in f"{error.message} {error.command_hint}"
    assert error.__cause__ is None  # its text would hold the address
    assert error.command_hint and "\n" not in error.message
    return error


@pytest.mark.parametrize("key", [WEIGHTS, LIST])
@pytest.mark.parametrize(
    ("kind", "value"),
    [("status", "503"), ("status", "500"), ("status", "429 Retry-After=1"), ("closed", ""), ("slow", "1.5")],
)
def test_a_fault_that_passes_is_repeated(store: Store, key: str, kind: str, value: str) -> None:
    """Busy, closed and silent servers get the same request again."""
    store.faults[key] = Fault(kind, 1, value)
    assert inspect("s3://bucket/m").findings == inspect(MODELS / "llama-untied").findings
    assert sum(request.key == key for request in store.requests) == 2


@pytest.mark.parametrize("cut", ["1", "20000", "50000", "stalls"])
def test_a_body_that_ends_early_is_continued(store: Store, cut: str) -> None:
    """From the byte that is missing; a server that is silent in the middle of a body loses the connection."""
    store.faults[WEIGHTS] = Fault("stalls", 1, "2") if cut == "stalls" else Fault("truncated", 1, cut)
    assert len(inspect("s3://bucket/m").checkpoint.tensors) == 21
    ranges = [str(request.range) for request in store.requests if request.key == WEIGHTS]
    assert ranges[1].startswith(f"bytes={100 if cut == 'stalls' else cut}-")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (Fault("status", value="503"), "objects.http", "HTTP 503 (3 attempts)"),
        (Fault("status", value="400"), "objects.http", "HTTP 400"),
        (Fault("status", value="403"), "objects.forbidden", "may not be read with these credentials"),
        (Fault("status", value="401"), "objects.unauthorized", "without valid credentials"),
        (Fault("status", value="404"), "objects.absent", "is not in the object store"),
        (Fault("status", value="301"), "objects.region", "another region"),
        (Fault("status", value="412"), "objects.changed", "was replaced while tieconv read it"),
        (Fault("slow", value="1.5"), "objects.timeout", "did not answer in time"),
        (Fault("closed"), "objects.network", "connection to the object store failed"),
        (Fault("whole"), "objects.range-ignored", "sent the whole file"),
        (Fault("shifted"), "objects.content-range", "another range"),
        (Fault("short"), "objects.content-range", "another range"),
        (Fault("resized"), "objects.changed", "was replaced while tieconv read it"),
    ],
    ids=lambda value: f"{value.kind}-{value.value}" if isinstance(value, Fault) else "",
)
def test_a_fault_that_stays_is_refused(store: Store, tmp_path: Path, fault: Fault, code: str, words: str) -> None:
    """In one sentence with the name of the file."""
    store.objects.clear()
    store.add("m", sharded(tmp_path / "m", 2))
    shard = "m/model-00001-of-00002.safetensors"
    store.faults[shard] = fault
    error = refusal()
    assert error.code == code and words in error.message
    assert "model-00001-of-00002.safetensors" in error.message


ODD_ETAG = (
    "<Contents><Key>m/config.json</Key><LastModified>2026-11-02T10:00:00.000Z</LastModified>"
    "<ETag>\u00e9</ETag><Size>2</Size></Contents>"
)
"""No If-Match header can hold this etag."""


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("status", value="503"), "objects.http"),
        (Fault("status", value="403"), "objects.forbidden"),
        (Fault("status", value="404"), "objects.absent"),
        (Fault("malformed", value="<html>secret words"), "objects.malformed"),
        (Fault("malformed", value="<ListBucketResult><Contents><Key>m/b</Key></Contents></ListBucketResult>"), ""),
        (Fault("malformed", value="<ListBucketResult></ListBucketResult>"), "objects.absent"),
        (Fault("malformed", value=f"<ListBucketResult>{ODD_ETAG}</ListBucketResult>"), ""),
    ],
    ids=["busy", "forbidden", "no-bucket", "html", "no-size", "empty", "etag"],
)
def test_a_listing_that_fails_is_refused(store: Store, fault: Fault, code: str) -> None:
    store.faults[LIST] = fault
    assert refusal().code == (code or "objects.malformed")


def test_a_file_that_is_replaced_between_two_reads_is_refused(store: Store, tmp_path: Path) -> None:
    """After the listing, each request is for the listed ETag."""
    store.objects.clear()
    store.add("m", sharded(tmp_path / "m", 2))
    etag = store.etag
    answers = itertools.chain([True], itertools.repeat(False))

    def changing(key: str) -> str:
        if key.endswith("00002-of-00002.safetensors"):
            return '"listed"' if next(answers) else '"replaced"'
        return etag(key)

    store.etag = changing  # type: ignore[method-assign]
    error = refusal()
    assert error.code == "objects.changed" and "00002-of-00002.safetensors was replaced" in error.message


def test_a_server_that_ignores_the_condition(store: Store) -> None:
    """The ETag of the response is compared too."""
    store.faults[WEIGHTS] = Fault("ignores-if-match")
    store.etags[WEIGHTS] = '"listed"'
    plain = store.etag

    def after_listing(key: str) -> str:
        return plain(key) if not any(request.key == key for request in store.requests) else '"replaced"'

    store.etag = after_listing  # type: ignore[method-assign]
    assert refusal().code == "objects.changed"


@pytest.mark.parametrize("key", ["m/../x", "m//y", "m/\x1b[31mred", "m/.", "m/a\\b"])
def test_a_hostile_key_is_refused(store: Store, key: str) -> None:
    """A key that could leave its directory, or control a terminal, never becomes a name."""
    store.objects[key] = b"1"
    error = refusal()
    assert error.code == "objects.key"
    assert "\x1b" not in error.message


def test_an_unusual_key_is_shown_harmlessly(store: Store, tieconv: Run) -> None:
    """Bidirectional marks in a key of a listing are escaped in the output."""
    store.objects["m/\u202egnp.safetensors"] = b"no weights"
    result = tieconv("check", "s3://bucket/m")
    assert "\u202e" not in result.stdout + result.stderr


@pytest.mark.parametrize("source", ["s3://", "s3://b", "s3://../m", "s3://bucket//m", "s3://bucket/../m", "az://-/m"])
def test_an_invalid_address(source: str) -> None:
    assert refusal(source).code in ("objects.bucket", "objects.path")


def test_10000_keys_in_ten_pages(store: Store) -> None:
    """A listing continues until its last page, and the models of the last page are models too."""
    store.objects.clear()
    store.objects |= {f"models/{number:05d}/model.safetensors": b"" for number in range(10_000)}
    models = expand(["s3://bucket/models/"])
    assert len(models) == 10_000 and models[-1] == "s3://bucket/models/09999"
    assert len(store.requests) == 10


def test_a_listing_that_fails_in_the_middle(store: Store) -> None:
    """A page that cannot be read is an error, and no shorter listing."""
    store.objects |= {f"models/{number:05d}/model.safetensors": b"" for number in range(3_000)}
    store.faults[LIST] = Fault("status", value="403", after=2)
    with pytest.raises(UnreadableError):
        expand(["s3://bucket/models/"])


def test_one_model_fails_and_the_others_are_checked(store: Store, tieconv: Run) -> None:
    """A row says why, and the exit code is 2."""
    store.add("n", MODELS / "t5")
    store.faults[WEIGHTS] = Fault("status", value="403")
    result = tieconv("check", "s3://bucket/m", "s3://bucket/n", "-j", "2")
    assert result.returncode == 2
    assert "s3://bucket/n: ok" in result.stdout
    assert "may not be read with these credentials" in result.stdout + result.stderr
    for secret in SECRETS:
        assert secret not in result.stdout + result.stderr


class Elsewhere:
    """A server that a redirect points at. ``heard`` counts its connections."""

    def __init__(self) -> None:
        self.heard = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/m/config.json"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._socket.accept()[0].close()
                self.heard += 1

    def close(self) -> None:
        self._socket.close()


def test_no_redirect_leaves_the_endpoint(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No byte goes to another host, so no token, signature or cookie does, and no answer of it is believed."""
    store.add("m", MODELS / "t5")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "verysecrettoken")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", store.url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "lab")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=secret")
    elsewhere = Elsewhere()
    for scheme in ("s3", "gs", "az"):
        for key in ("LIST", "m/config.json") if scheme != "az" else ("",):
            for status in (301, 302, 303, 307, 308):
                store.faults = {key: Fault("status", value=f"{status} Location={elsewhere.url}")}
                error = failure_of(inspect, UnreadableError, f"{scheme}://bucket/m")
                with case(scheme, key, status, error.code):
                    assert error.code == "objects.redirect" and elsewhere.heard == 0
                    assert not any(word in str(error) for word in SECRETS)
    elsewhere.close()


class UserProxy(socketserver.ThreadingTCPServer):
    """A proxy of the user. ``heads`` is what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Tunnel)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


class _Tunnel(socketserver.StreamRequestHandler):
    server: UserProxy

    def handle(self) -> None:
        lines = list(iter(self.rfile.readline, b"\r\n"))
        self.server.heads.append(b"".join(lines))
        host, port = lines[0].split()[1].decode().split(":")
        with socket.create_connection((host, int(port))) as upstream, contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 ok\r\n\r\n")
            threading.Thread(target=self._copy, args=(self.connection, upstream), daemon=True).start()
            self._copy(upstream, self.connection)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_https_passes_the_gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reads, writes and refused redirects over TLS, with and without a proxy of the user."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed: it makes the certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=127.0.0.1"
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(["openssl", *words.split(), *named], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    store, _, stop = start_writable(context)
    store.add("m", MODELS / "t5")
    point_at(store, monkeypatch, tmp_path, retries=1)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    elsewhere = Elsewhere()
    cases = (
        ({"NO_PROXY": "127.0.0.1"}, False),
        ({"HTTPS_PROXY": "http://ADDRESS", "NO_PROXY": "127.0.0.0/8"}, False),
        ({"HTTPS_PROXY": "http://us%40er:word@ADDRESS", "NO_PROXY": "example.com"}, True),
        ({"ALL_PROXY": "ADDRESS", "NO_PROXY": ""}, True),
    )
    expected = verdict(local(MODELS / "t5"))
    for chosen, through in cases:
        proxy = UserProxy()  # a new one: a connection for the proxy of another case may come late
        with monkeypatch.context() as environment:
            environment.setattr(object_client, "_stores", {})
            for name, value in chosen.items():
                environment.setenv(name, value.replace("ADDRESS", f"127.0.0.1:{proxy.server_address[1]}"))
            assert verdict(json.loads(str(inspect("s3://bucket/m")))) == expected, chosen
            assert bool(proxy.heads) == through, chosen
            assert all(head.startswith(b"CONNECT ") for head in proxy.heads)
            assert all((b"Basic dXNAZXI6d29yZA==" in head) == ("@" in str(chosen)) for head in proxy.heads)
            writer = ObjectWriter(parse("s3://bucket/out"))
            writer.create("a", b"bytes" * 100_000)
            writer.check_own("a", b"bytes" * 100_000)
            writer.delete(["a"])
            for gate in [gate for _, gate in object_client._stores.values()]:
                gate.cut()
        proxy.shutdown()
        proxy.server_close()
    monkeypatch.setattr(object_client, "_stores", {})
    for asked in ("LIST", "m/config.json", "m/model.safetensors"):
        store.faults = {asked: Fault("status", value=f"307 Location={elsewhere.url.replace('http:', 'https:')}")}
        assert failure_of(inspect, UnreadableError, "s3://bucket/m").code == "objects.redirect", asked
        assert elsewhere.heard == 0, asked
    elsewhere.close()
    stop()


ENDLESS = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>{}"
ENTRY = (
    "<Contents><Key>{}</Key><LastModified>2026-11-02T10:00:00.000Z</LastModified>"
    "<ETag>e</ETag><Size>1</Size></Contents>"
)
LISTINGS = {
    "a key again and again": ENDLESS.format(ENTRY.format("m/a")),
    "pages without keys": ENDLESS.format(""),
    "prefixes without keys": ENDLESS.format("<CommonPrefixes><Prefix>m/b/</Prefix></CommonPrefixes>"),
    "one page without end": ENDLESS.format("<!--" + "x" * (1 << 20) + "-->"),
    "a key twice": f"<ListBucketResult>{ENTRY.format('m/a')}{ENTRY.format('m/a')}",
}
ENDINGS = {"objects.repeated", "objects.endless", "objects.too-long"}
"""Which limit is met first depends on the speed of the machine."""


@pytest.mark.slow
def test_a_listing_has_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, keys and time, for a prefix, a file and a search for models; and nothing goes on after it."""
    monkeypatch.setattr(object_client, "PAGE_SECONDS", 1.0)
    monkeypatch.setattr(object_client, "PAGE_BYTES", 200_000)
    for name, body in LISTINGS.items():
        store.faults = {"LIST": Fault("malformed", value=f"{body}</ListBucketResult>")}
        for source in ("m", "m/"):
            call, address = (inspect, "s3://bucket/m") if source == "m" else (expand, ["s3://bucket/m/"])
            code = failure_of(call, UnreadableError, address).code
            assert code in ENDINGS, f"{name}: {source}: {code}"
        assert code == "objects.repeated" or name != "a key twice"
        with pytest.raises(UnreadableError):
            inspect("s3://bucket/m/model.safetensors")
        time.sleep(0.3)
        asked = len(store.requests)
        time.sleep(0.3)
        assert len(store.requests) <= asked + 1, name


def test_variables_that_no_request_can_hold(store: Store, tieconv: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence and exit 2, also in `check`, whose exit code 1 means findings. obstore would panic."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAKEYID\n",
        "AWS_SESSION_TOKEN": "token\n",
        "AWS_REGION": "us-east-1\n",
        "AWS_ENDPOINT_URL": f"{store.url}\n",
        "AWS_ENDPOINT_URL_S3": "storage.example.com:9000",
        "AWS_ENDPOINT": "é",
    }.items():
        with monkeypatch.context() as environment:
            if name == "AWS_ENDPOINT":
                environment.delenv("AWS_ENDPOINT_URL")
            environment.setenv(name, value)
            environment.setattr(object_client, "_stores", {})
            assert refusal().code == "objects.settings", name
    result = tieconv("check", "s3://bucket/m", AWS_REGION="us-east-1\n")
    assert result.returncode == 2 and "Traceback" not in result.stderr and "panicked" not in result.stderr
