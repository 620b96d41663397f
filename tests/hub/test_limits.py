"""Limits on what a server may cost: time, bytes and waits. Silence is cut to 0.2 s, and deadlines with it."""

from __future__ import annotations

import email.utils
import json
import time
from pathlib import Path

import pytest

from tests.children import sound
from tests.hub.conftest import Run, refused
from tests.hub.models import sharded
from tests.hub.stub import Fault, Hub

SHARD = "model-00002-of-00003.safetensors"
NOTES = "notes.data"


@pytest.fixture
def model(hub: Hub, tmp_path: Path) -> Path:
    path = sharded(tmp_path / "m", shards=3, tied=True)
    (path / NOTES).write_bytes(bytes(range(256)) * 64)
    hub.add("org/m", path)
    return path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["drip", "drip-headers"])
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("inspect", "hf://org/m"), SHARD),
        (("inspect", "hf://org/m"), "config.json"),
        (("inspect", "hf://org/m"), "api:org/m"),
        (("check", "hf://org/*"), "api:models"),
        (("untie", "hf://org/m", "-o", "out"), NOTES),
        (("untie", "hf://org/m", "-o", "out"), "tree:org/m"),
    ],
    ids=str,
)
def test_drip(kind: str, words: tuple[str, ...], name: str, model: Path, hub: Hub, hasty: Run) -> None:
    """An answer that drips is given up at its deadline, although no two bytes are far from each other."""
    hub.faults[name] = Fault(kind, value="0.05")
    error, hint = refused(hasty(*words, silence=1 / 3))
    assert "did not send 1.05 MB, or the rest, within 2 seconds" in error and "HF_HUB_DOWNLOAD_TIMEOUT" in hint
    assert 1_000_000 - hub.faults[name].times <= 2


def test_slow_reader_is_not_late() -> None:
    """The deadline is the server's: what the program does between two reads does not count."""
    from tieconv.sources.hub import session as hub_session

    class Inner:
        def __iter__(self) -> object:
            return iter([b"a", b"b", b"c"])

    clock = [0.0]
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr("tieconv.sources.hub.session.time.monotonic", lambda: clock[0])
        for _ in hub_session._Timed(Inner(), 3):
            clock[0] += 1000


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["api:org/m", "config.json", SHARD, NOTES])
def test_gzip(name: str, model: Path, hub: Hub, tieconv: Run) -> None:
    """Nothing is inflated: no request asks for compression, and an answer that is compressed is refused."""
    hub.faults[name] = Fault("gzip", value=str(64 << 20))
    error, _ = refused(tieconv("untie", "hf://org/m", "-o", "out"))
    assert "a compressed response" in error
    assert {one.encoding for one in hub.requests} == {"identity"}


def test_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that does not end is not read on."""
    from tieconv.sources.hub import session as hub_session
    from tieconv.sources.hub.session import AnswerError

    class Endless:
        def __iter__(self) -> object:
            return iter(lambda: bytes(1 << 20), b"")

    with pytest.raises(AnswerError, match="more than 134,217,728 bytes"):
        for _ in hub_session._Timed(Endless(), hub_session.LARGEST_ANSWER):
            pass


def http_date(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (SHARD, ("inspect", "hf://org/m")),
        ("api:org/m", ("inspect", "hf://org/m")),
        (NOTES, ("untie", "hf://org/m", "-o", "out")),
    ],
)
@pytest.mark.parametrize("value", ["61", "999999999999999999999", "date"])
@pytest.mark.parametrize("status", ["429", "503"])
def test_wait_that_is_too_long(
    status: str, value: str, name: str, words: tuple[str, ...], model: Path, hub: Hub, tieconv: Run
) -> None:
    """A server that asks for a wait of more than a minute, in seconds or until a date, is not waited for."""
    hub.faults[name] = Fault("retry-after", value=f"{status} {'in 3600' if value == 'date' else value}")
    error, hint = refused(tieconv(*words))
    assert "no more requests for now" in error and "try again in " in hint and hint.endswith("seconds")
    seconds = int(hint.split()[-2])
    assert 3400 < seconds <= 3601 if value == "date" else seconds == min(int(value), 999_999_999)


@pytest.mark.parametrize(
    ("name", "words"), [(SHARD, ("inspect", "hf://org/m")), (NOTES, ("untie", "hf://org/m", "-o", "out"))]
)
def test_date_is_obeyed(name: str, words: tuple[str, ...], model: Path, hub: Hub, tieconv: Run) -> None:
    """A date that is near is waited for, also by huggingface_hub, which does not know dates."""
    hub.faults[name] = Fault("retry-after", 1, "429 in 2.9")  # of whole seconds: at least 1.9 from then
    assert tieconv(*words).returncode == 0
    first, second = [one for one in hub.requests if name in one.path and one.server == "storage"][:2]
    assert second.at - first.at >= 1


def test_retry_after() -> None:
    """Seconds, a date by the server's own clock or by ours, one that has passed, and what is neither."""
    from types import SimpleNamespace

    from tieconv.sources.hub.session import retry_after

    def asked(**headers: str) -> float | None:
        return retry_after(SimpleNamespace(headers={key.replace("_", "-"): value for key, value in headers.items()}))

    assert asked(Retry_After="Sat, 22 Nov 2036 16:00:30 GMT", Date="Sat, 22 Nov 2036 16:00:00 GMT") == 30
    assert 95 < (asked(Retry_After=http_date(100)) or 0) <= 100
    assert asked(Retry_After=http_date(-100)) == 0
    assert asked(Retry_After="soon") is None and asked(Retry_After="") is None and asked() is None


def test_huggingface_hub_is_as_it_was(hub: Hub, python: Run, model: Path) -> None:
    """Outside of a command of tieconv huggingface_hub asks for compression, and knows no deadline of ours."""
    program = """
import huggingface_hub as h, tieconv
tieconv.inspect("hf://org/m")
h.HfApi().model_info("org/m")
"""
    sound(python(program))
    assert hub.requests[-1].encoding != "identity" and hub.requests[0].encoding == "identity"


def test_full_depth_fetches_no_more_than_the_model(hub: Hub, tieconv: Run, models: Path) -> None:
    """Of small models, where what surrounds a range is a large part, no byte travels twice."""
    for name in sorted(path.name for path in models.iterdir()):
        hub.add(f"org/{name}", models / name)
        result = tieconv("inspect", f"hf://org/{name}", "--depth", "full", "--json")
        if result.returncode == 0:
            holds = sum(path.stat().st_size for path in (models / name).rglob("*") if path.is_file())
            assert json.loads(result.stdout)["model"]["fetched"]["bytes"] <= holds, name


@pytest.mark.parametrize("nan", [True, False])
def test_full_depth_of_equal_copies(nan: bool, hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """Equal copies travel once each, for the proof, for the NaN in them and for other duplicates, in any files."""
    from tests.hub.models import EMBEDDING, HEAD, same_head, write_shard

    data = bytearray(same_head())
    if nan:
        data[300_000:300_002] = b"\xc1\x7f"
    path = sharded(tmp_path / "n", shards=2, tied=True)
    tensors = {name: ((2048, 128), bytes(data)) for name in (EMBEDDING, HEAD)}
    other = {f"model.layers.{n}.mlp.up_proj.weight": ((2048, 128), bytes(data[::-1])) for n in range(2)}
    (path / "model.safetensors.index.json").unlink()
    for shard in path.glob("model-*"):
        shard.unlink()
    write_shard(path / "model.safetensors", tensors | other)
    hub.add("org/n", path)
    near, far = (
        json.loads(tieconv("inspect", model, "--depth", "full", "--json").stdout) for model in (path, "hf://org/n")
    )
    assert far["ties"] == near["ties"] and far["duplicates"] == near["duplicates"]
    assert ("nan" in far["ties"][0]["members"][1]["detail"]) == nan
    assert far["model"]["fetched"]["bytes"] == sum(file.stat().st_size for file in path.iterdir())


def test_pieces() -> None:
    """What is held is found by any part of it, and the oldest goes where there is no room."""
    from tieconv.sources.ranged import Pieces

    held = Pieces(20)
    held.add("a", 10, b"0123456789")
    held.add("a", 25, b"xyz")
    assert held.get("a", 12, 15) == b"234" and held.get("a", 12, 21) is None and held.get("b", 12, 15) is None
    assert held.until("a", 18, 30) == b"89" and held.until("a", 20, 30) == b""
    assert (held.next("a", 0, 9), held.next("a", 0, 99), held.next("a", 10, 99), held.next("a", 25, 99)) == (
        9,
        10,
        25,
        99,
    )
    held.add("a", 10, b"short")
    assert held.get("a", 10, 20) == b"0123456789"
    held.add("b", 0, b"12345678")
    assert held.get("a", 10, 11) is None and held.get("a", 25, 28) == b"xyz" and held.get("b", 0, 8) == b"12345678"
    held.add("b", 50, bytes(11))
    assert held.get("b", 50, 51) is None


LISTINGS = """
import json, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

heard, mode, asked = [], "", [0]

class Elsewhere(BaseHTTPRequestHandler):
    def do_GET(self):
        heard.append(self.headers.get("Authorization"))
        send(self, b'[{"id": "org/evil"}]')
    do_POST = do_GET
    def log_message(self, *_): pass

class Hub(Elsewhere):
    def do_GET(self):
        asked[0] += 1
        if not self.path.startswith("/api/models"):
            return send(self, b"", 307 if "/resolve/" in self.path else 404, Location=other + self.path)
        if mode.isdigit():
            return send(self, b"", int(mode), Location=other + self.path)
        rows = {"elsewhere": ["org/a"], "same": ["org/a"], "fresh": [f"org/m{asked[0]}"]}.get(mode, [])
        body = json.dumps([{"id": row} for row in rows]).encode()
        body = {"values": b"[" + b"[]," * 4_000_000 + b"[]]", "large": b" " * (65 << 20)}.get(mode, body)
        onward = {"elsewhere": f"{other}/next", "circle": f"{here}/api/models?page=1"}
        link = onward.get(mode, f"{here}/api/models?page={asked[0]}")
        send(self, body, **({} if mode in ("values", "large") else {"Link": f'<{link}>; rel="next"'}))

def send(answer, body, status=200, **headers):
    answer.send_response(status)
    for key, value in {**headers, "Content-Length": len(body)}.items():
        answer.send_header(key, str(value))
    answer.end_headers()
    try:
        answer.wfile.write(body)
    except OSError:
        pass

def serve(kind):
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"

here, other = serve(Hub), serve(Elsewhere)
os.environ |= {"HF_ENDPOINT": here, "HF_TOKEN": "hf_good"}
from tieconv.errors import TieconvError
from tieconv.sources.hub.client import Client, RemoteFile
from tieconv.sources.hub.source import expand
from huggingface_hub.utils import get_session
from tieconv.sources.hub.session import transferring
from tieconv.sources import ranged as traffic

traffic.MOST_KEYS = 5_000
for mode in ("elsewhere", "301", "302", "307", "308", "same", "circle", "empty", "fresh", "values", "large"):
    try:
        print(mode, expand("hf://org/*"))
    except TieconvError as error:
        print(mode, error.code)
print("listings", heard)
Client().read(RemoteFile(f"{here}/org/m/resolve/main/x", "x", 20, "main", ""), 0, 20)
with transferring():  # as huggingface_hub asks a server to check an upload
    get_session().post(other, headers={"Authorization": "Bearer hf_good"})
print("files", heard)
get_session().post(other, headers={"Authorization": "Bearer hf_good"})
print("unlimited", heard[-1])
"""


def test_listings_have_an_end_and_the_token_stays(interpreter: Run) -> None:
    """No listing goes on at another host, for ever, with a name twice or with millions of values. No token leaves."""
    result = sound(interpreter("-c", LISTINGS))
    lines = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    away = dict.fromkeys(("elsewhere", "301", "302", "307", "308"), "hub.redirect")
    ends = {"same": "hub.repeated", "circle": "hub.repeated", "empty": "hub.too-large", "fresh": "hub.too-large"}
    assert lines == away | ends | {
        "values": "hub.too-large",
        "large": "hub.too-long",
        "listings": "[]",
        "files": "[None, None]",
        "unlimited": "Bearer hf_good",  # what a program asks without tieconv stays as it is
    }
    from tieconv.sources.hub.session import _origin

    assert [_origin(f"{scheme}://hub")[2] for scheme in ("http", "https")] == [80, 443]
