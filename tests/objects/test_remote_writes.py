"""Writing to S3: the server copies what stays, a new prefix alone is written, and an index comes last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import children
from tests.children import answer, sound
from tests.cli.stored import snapshot
from tests.hub.models import same_head, sharded
from tests.objects.conftest import ROOT, SECRETS, Run, point_at
from tests.objects.stub import Fault, Store
from tests.objects.writable_stub import Writes, start_writable
from tests.patience import HANGS
from tests.refusals import failure_of
from tieconv import DestinationError, TieconvError, diff, plan_convert, plan_retie, plan_untie
from tieconv.execute import remote_files as multipart
from tieconv.execute.remote_files import Limits

pytestmark = pytest.mark.needs("boto3")

CLAIM = "out/.tieconv-write"
SMALL = Limits(least=100_000, upload=400_000, copy=300_000)
INDEX = "model.safetensors.index.json"
LAST = "model-00003-of-00003.safetensors"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    """What was written to `store`, with small parts."""
    from tieconv.sources.objects import s3_copy

    monkeypatch.setattr(multipart, "S3", SMALL)
    monkeypatch.setattr(s3_copy, "ATTEMPTS", 3)
    return _STARTED[-1]


_STARTED: list[Writes] = []


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A writable store, in place of the one that is only read."""
    running, written, stop = start_writable()
    written.least = SMALL.least
    _STARTED.append(written)
    point_at(running, monkeypatch, tmp_path)
    yield running
    stop()
    _STARTED.pop()


@pytest.fixture
def model(store: Store, tmp_path: Path) -> Path:
    """A sharded model with a copy of the embedding, also at ``s3://bucket/m``."""
    path = sharded(tmp_path / "m", 3, head=same_head(), tied=True)
    (path / "README.md").write_text("# card\n")
    store.add("m", path)
    return path


def _below(store: Store, prefix: str = "out/") -> dict[str, bytes]:
    return {key.removeprefix(prefix): data for key, data in store.objects.items() if key.startswith(prefix)}


def retied() -> object:
    """The outcome of a re-tie of the model of the store, written beside it."""
    return plan_retie("s3://bucket/m").execute("s3://bucket/out")


def test_the_server_copies_what_stays(store: Store, writes: Writes, model: Path, tmp_path: Path) -> None:
    """The result is that of the disk, byte for byte. Less than two of the smallest parts are uploaded."""
    before = _below(store, "m/")
    outcome = retied()
    plan_retie(model).execute(tmp_path / "local")
    assert _below(store) == snapshot(tmp_path / "local") and _below(store, "m/") == before
    assert outcome.remote is not None and outcome.verified and outcome.output == "s3://bucket/out"
    whole = sum(map(len, _below(store).values()))
    claim = len("0.1.0 \n") + 32
    assert outcome.remote.bytes_uploaded == writes.received - claim < 2 * SMALL.least
    assert outcome.remote.bytes_copied == writes.copied == whole - outcome.remote.bytes_uploaded
    assert not writes.uploads


def test_the_forecast_is_what_is_moved(store: Store, writes: Writes, model: Path) -> None:
    """And asking for it sends nothing."""
    planned = plan_retie("s3://bucket/m")
    requests = len(store.requests)
    forecast = planned.outcome("s3://bucket/out").remote
    assert len(store.requests) == requests and not writes.operations
    outcome = planned.execute("s3://bucket/out")
    assert forecast and outcome.remote
    assert forecast.bytes_uploaded == outcome.remote.bytes_uploaded
    assert forecast.bytes_copied == outcome.remote.bytes_copied
    source = sum(request.sent for request in store.requests if request.key.startswith("m/"))
    assert forecast.bytes_read == source + forecast.bytes_uploaded


def test_a_head_is_copied_by_the_server(store: Store, writes: Writes, model: Path) -> None:
    """`untie` needs a new shard, whose matrix the server copies; the round trip keeps the function."""
    plan_retie("s3://bucket/m").execute("s3://bucket/tied")
    sent = writes.received
    outcome = plan_untie("s3://bucket/tied").execute("s3://bucket/out")
    assert writes.received - sent < 2 * SMALL.least and outcome.remote and outcome.remote.method == "server_copy"
    assert diff("s3://bucket/out", "s3://bucket/tied").same_function


def test_the_documents_come_last(store: Store, writes: Writes, model: Path) -> None:
    """The claim is first, then the weights, then the config, then the index; the claim goes at the end."""
    retied()
    made = [entry for entry in writes.operations if entry[0] in ("put", "copy", "complete", "delete")]
    assert made[0] == ("put", CLAIM) and made[-1] == ("delete", CLAIM)
    assert made[-3:-1] == [("put", "out/config.json"), ("put", f"out/{INDEX}")]


def test_attributes_are_carried(store: Store, writes: Writes, model: Path) -> None:
    """Metadata, content type, storage class, encryption and tags, of rewritten and of copied files."""
    attributes = {"x-amz-meta-team": "nlp", "content-type": "application/x-tensors",
                  "x-amz-storage-class": "STANDARD_IA", "x-amz-server-side-encryption": "AES256"}  # fmt: skip
    for key in [key for key in store.objects if key.startswith("m/")]:
        writes.attributes[key], writes.tags[key] = attributes, "cost=42"
    retied()
    for name in _below(store):
        assert writes.attributes[f"out/{name}"].items() >= writes.attributes[f"m/{name}"].items(), name
        assert writes.tags[f"out/{name}"] == "cost=42", name


def test_tags_that_may_not_be_read_are_told(store: Store, writes: Writes, model: Path) -> None:
    store.faults["tags"] = Fault("status", value="403 AccessDenied")
    assert any("tags" in note for note in retied().plan.notes)


@pytest.mark.parametrize("taken", ["config.json", "deep/file"])
def test_an_existing_prefix_is_refused(store: Store, writes: Writes, model: Path, taken: str) -> None:
    store.objects[f"out/{taken}"] = b"theirs"
    assert failure_of(retied, TieconvError).code == "out.exists"
    assert _below(store) == {taken: b"theirs"} and not writes.operations


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ((f"copy_part out/{LAST}", Fault("status", value="500 InternalError")), "write.http"),
        ((f"copy_part out/{LAST}", Fault("status", value="403 ExpiredToken", after=1)), "write.forbidden"),
        ((f"copy_part out/{LAST}", Fault("replaces", times=1)), "objects.changed"),
        (("copy out/README.md", Fault("replaces", times=1)), "objects.changed"),
        ((f"put_part out/{LAST}", Fault("corrupts", times=1)), "verify.bytes"),
        ((f"complete out/{LAST}", Fault("status", value="400 InvalidPart")), "write.http"),
        ((f"put out/{INDEX}", Fault("status", value="403 AccessDenied")), "write.forbidden"),
        (("put", Fault("status", value="403 AccessDenied")), "write.forbidden"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_fault_leaves_nothing(store: Store, writes: Writes, model: Path, fault: tuple[str, Fault], code: str) -> None:
    """The prefix is empty, no upload is unfinished, and the message has no text of the server."""
    planned = plan_retie("s3://bucket/m")
    store.faults[fault[0]] = fault[1]
    error = failure_of(planned.execute, TieconvError, "s3://bucket/out")
    assert error.code == code
    assert _below(store) == {} and not writes.uploads
    assert not any(secret in f"{error} {error.hint}" for secret in SECRETS)


@pytest.mark.slow
def test_a_damaged_copy_is_noticed_by_full(store: Store, writes: Writes, model: Path) -> None:
    """``verify="full"`` reads back what the server copied; without it the bytes of a copy are the server's word."""
    store.faults[f"copy_part out/{LAST}"] = Fault("corrupts", times=1)
    planned = plan_retie("s3://bucket/m")
    assert failure_of(planned.execute, TieconvError, "s3://bucket/out", verify="full").code == "verify.bytes"
    assert _below(store) == {}
    assert plan_retie("s3://bucket/m").execute("s3://bucket/full", verify="full").verified


def test_a_source_that_changed_after_the_plan(store: Store, writes: Writes, model: Path) -> None:
    planned = plan_retie("s3://bucket/m")
    store.objects["m/config.json"] += b" "
    assert failure_of(planned.execute, TieconvError, "s3://bucket/out").code == "plan.stale" and not writes.operations


def test_another_program_in_the_prefix(store: Store, writes: Writes, model: Path) -> None:
    """A file that appears during the write, or an index, ends it; theirs stays."""
    store.faults["put out/config.json"] = Fault("lost", times=1, value="theirs")
    error = failure_of(retied, TieconvError)
    assert error.code == "out.exists" and "another program" in str(error)
    assert _below(store) == {"config.json": b"theirs"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [".tieconv-write", "config.json", INDEX])
def test_a_lost_response(store: Store, writes: Writes, model: Path, name: str) -> None:
    """The repeated request finds the object of the first one, which is tieconv's."""
    store.faults[f"put out/{name}"] = Fault("lost", times=1)
    assert retied().verified
    assert INDEX in _below(store) and CLAIM not in store.objects


def test_503_is_repeated(store: Store, writes: Writes, model: Path) -> None:
    store.faults[f"copy_part out/{LAST}"] = Fault("status", times=2, value="503 SlowDown")
    assert retied().verified


@pytest.mark.parametrize("answer", ["501 NotImplemented", "405 MethodNotAllowed"])
def test_a_store_without_range_copies(store: Store, writes: Writes, model: Path, tmp_path: Path, answer: str) -> None:
    """Gets an upload of the whole model, and the note says so."""
    store.faults["copy_part"] = Fault("status", value=answer)
    outcome = retied()
    plan_retie(model).execute(tmp_path / "local")
    assert _below(store) == snapshot(tmp_path / "local") and not writes.uploads
    assert outcome.remote and outcome.remote.method == "upload"
    assert any("the server cannot copy ranges" in note for note in outcome.plan.notes)


def test_a_local_model_is_uploaded(store: Store, writes: Writes, model: Path, tmp_path: Path, tieconv: Run) -> None:
    document = answer(tieconv("retie", model, "-o", "s3://bucket/out", "--json"))
    plan_retie(model).execute(tmp_path / "local")
    assert _below(store) == snapshot(tmp_path / "local")
    assert document["remote"]["method"] == "upload" and document["remote"]["why"] == "the model is not in S3"
    assert document["remote"]["bytes_uploaded"] == sum(map(len, _below(store).values()))


def test_a_torch_file_is_uploaded(store: Store, writes: Writes, model: Path, tmp_path: Path) -> None:
    """Also with ``verify="structure"`` its bytes are compared: an inspection of headers cannot read it."""
    plan_convert("torch", model).execute(tmp_path / "torch")
    store.add("torch", tmp_path / "torch")
    plan_retie(tmp_path / "torch").execute(tmp_path / "local")
    for number, source in enumerate((tmp_path / "torch", "s3://bucket/torch")):
        plan_retie(source).execute(f"s3://bucket/out{number}", verify="structure")
        assert _below(store, f"out{number}/") == snapshot(tmp_path / "local")


def test_an_output_inside_the_model(store: Store, writes: Writes, model: Path) -> None:
    """The model would then hold two models, and so would later copies of it."""
    write = plan_retie("s3://bucket/m")
    assert failure_of(write.execute, DestinationError, "s3://bucket/m/tied").code == "out.inside-source"
    assert not writes.operations
    write.execute("s3://bucket/m2")


@pytest.mark.parametrize("option", ["--overwrite", "--hardlink"])
def test_options_of_local_outputs(store: Store, writes: Writes, model: Path, tieconv: Run, option: str) -> None:
    result = tieconv("retie", "s3://bucket/m", "-o", "s3://bucket/out", option)
    assert result.returncode == 2 and option in result.stderr and "new prefix" in result.stderr
    assert not writes.operations


def test_the_text_says_what_is_moved(store: Store, writes: Writes, model: Path, tieconv: Run) -> None:
    """In the plan of a dry run, and after the write; no credential is printed."""
    dry = tieconv("retie", "s3://bucket/m", "-o", "s3://bucket/out", "--dry-run")
    assert "copied by the server" in dry.stdout and not writes.operations
    writes.least = 5 << 20
    result = sound(tieconv("retie", "s3://bucket/m", "-o", "s3://bucket/out"))
    assert "wrote s3://bucket/out: " in result.stderr and "uploaded bytes compared" in result.stderr
    assert not any(secret in result.stderr + result.stdout for secret in SECRETS)


_DRIVER = """
import tieconv
from tieconv.execute import remote_files as parts
parts.S3 = parts.Limits(least=100_000, upload=400_000, copy=300_000)
tieconv.plan_retie("s3://bucket/m").execute("s3://bucket/out")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
@pytest.mark.parametrize(
    "after",
    [8, *(pytest.param(after, marks=pytest.mark.slow) for after in (1, 2, 4, 12, 16, 20, 24, 28, 30, 32, 33, 34, 36))],
)
def test_a_kill_leaves_no_index(
    store: Store, writes: Writes, model: Path, tmp_path: Path, after: int, sent: signal.Signals
) -> None:
    """After any number of requests. SIGTERM leaves nothing; after SIGKILL the next write says what is there.

    The index comes last, so a model with one is whole.
    """
    before = _below(store, "m/")
    writes.stop_after = after
    process = children.start(
        [sys.executable, "-P", "-c", _DRIVER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not writes.reached.wait(0.02) and process.poll() is None:
        pass
    process.send_signal(sent)
    if sent == signal.SIGKILL:
        process.wait(HANGS)
    writes.hold.set()
    process.wait(HANGS)
    left = _below(store)
    assert _below(store, "m/") == before
    if process.returncode == 0 or INDEX in left:
        plan_retie(model).execute(tmp_path / "whole")
        assert {name: data for name, data in left.items() if f"out/{name}" != CLAIM} == snapshot(tmp_path / "whole")
        assert not writes.uploads
        return
    if sent == signal.SIGTERM:
        # An upload that the store starts while the command ends has no parts, and nobody knows its id.
        assert left == {} and not any(parts for _, parts in writes.uploads.values())
        return
    if left:
        assert failure_of(retied, TieconvError).code == "out.unfinished"
    for key in [key for key in store.objects if key.startswith("out/")]:
        del store.objects[key]
    retied()
    assert not writes.uploads and CLAIM not in store.objects
