"""What is written: whole, faithful, with the right modes and owners; the source as it was."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tieconv.checkpoint.write_plan import OutputTensor, OutputWeights, Promises, Scaled
from tieconv.errors import DestinationError, RefusedError, StalePlanError
from tieconv.execute import publish
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target, removal_notes, replaces_directory

from . import models


@pytest.fixture(params=[0o027, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """A umask other than the usual one."""
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_directory(model: Path, tmp_path: Path) -> None:
    """OUT holds the changed files and all the others; the source is untouched; nothing is left beside it."""
    before = models.digest(model)
    execute(models.retie(model), Target(tmp_path / "out"), reinspect=models.inspect)
    out = tmp_path / "out"
    assert models.digest(model) == before
    assert models.files_under(out) == models.files_under(model)
    tensors, written = (models.tensor_bytes(folder / "model.safetensors") for folder in (model, out))
    assert written == {name: data for name, data in tensors.items() if name != models.HEAD}
    assert models.digest(out)["original/params.json"] == before["original/params.json"]
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    assert models.strays(tmp_path) == []


def test_deterministic(model: Path, tmp_path: Path) -> None:
    """The same plan gives the same bytes."""
    for name in ("a", "b"):
        execute(models.with_bias(model), Target(tmp_path / name), reinspect=models.inspect)
    assert models.digest(tmp_path / "a") == models.digest(tmp_path / "b")


def test_the_library_reads_it(model: Path, tmp_path: Path) -> None:
    """safetensors loads the output."""
    plan = models.with_bias(model)
    first, _, layers, *_ = plan.weights[0].tensors
    as_bits = dataclasses.replace(layers, name="extra", dtype="U16")
    weights = dataclasses.replace(plan.weights[0], tensors=(first, as_bits))
    execute(dataclasses.replace(plan, weights=(weights,)), Target(tmp_path / "out"), reinspect=models.inspect)
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert not loaded["lm_head.bias"].any()
    assert loaded["extra"].tobytes() == models.tensor_bytes(model / "model.safetensors")[layers.name]


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "ünï": "✓"}])
def test_metadata(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    """No metadata, empty metadata and metadata are three things, and each stays what it is."""
    source = models.single(tmp_path / "source", metadata=metadata)
    execute(models.retie(source), Target(tmp_path / "out"), reinspect=models.inspect)
    assert models.read_header(tmp_path / "out" / "model.safetensors").metadata == metadata


def test_sharded_with_a_file_removed(shards: Path, tmp_path: Path) -> None:
    """A file without successor does not come along."""
    plan = models.retie(shards)
    execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    assert set(models.files_under(shards)) - set(models.files_under(tmp_path / "out")) == set(plan.removed)


def test_lone_file(model: Path, tmp_path: Path) -> None:
    """FILE to OUT is one file, new or overwritten or in place."""
    source, out = model / "model.safetensors", tmp_path / "out.safetensors"
    execute(models.retie(source), Target(out), reinspect=models.inspect)
    assert models.HEAD not in models.tensor_bytes(out)
    execute(models.with_bias(source), Target(out, overwrite=True), reinspect=models.inspect)
    assert models.HEAD in models.tensor_bytes(out)
    others = {name: digest for name, digest in models.digest(model).items() if name != "model.safetensors"}
    execute(models.retie(source), Target(source, in_place=True), reinspect=models.inspect)
    assert models.HEAD not in models.tensor_bytes(source)
    assert {n: d for n, d in models.digest(model).items() if n != "model.safetensors"} == others
    assert models.strays(tmp_path) == []


def test_a_file_beside_its_source(model: Path) -> None:
    """OUT of a lone file may lie in the same directory."""
    source = model / "model.safetensors"
    execute(models.retie(source), Target(model / "tied.safetensors"), reinspect=models.inspect)
    assert models.HEAD not in models.tensor_bytes(model / "tied.safetensors")


def test_modes(model: Path, tmp_path: Path, umask: int) -> None:
    """Every file of a new OUT has the mode of its source, a new one 0666, without the umask's bits."""
    os.chmod(model / "model.safetensors", 0o644)
    os.chmod(model / "tokenizer.json", 0o444)
    os.chmod(model / "original", 0o711)
    plan = models.with_bias(model)
    new = OutputWeights("extra.safetensors", plan.weights[0].tensors[:1], None)
    plan = dataclasses.replace(plan, weights=(*plan.weights, new))
    os.utime(model / "tokenizer.json", ns=(10**18, 10**18))
    plan = dataclasses.replace(plan, links=models.retie(model).links + plan.links[:1])
    execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    out = tmp_path / "out"
    assert mode(out / "model.safetensors") == 0o644 & ~umask
    assert mode(out / "tokenizer.json") == 0o444 & ~umask
    assert (out / "tokenizer.json").stat().st_mtime_ns == 10**18
    assert mode(out / "extra.safetensors") == 0o666 & ~umask
    assert mode(out / "original" / "params.json") == 0o644 & ~umask
    assert mode(out / "original") == 0o711 & ~umask
    assert mode(out) == 0o755 & ~umask


@pytest.mark.parametrize("how", [{"in_place": True}, {"overwrite": True}], ids=str)
def test_modes_of_replaced_files(model: Path, tmp_path: Path, umask: int, how: dict[str, bool]) -> None:
    """What takes the name of a file keeps that file's mode, whatever the umask is."""
    out = model if "in_place" in how else models.single(tmp_path / "out", rows=16)
    modes = {"model.safetensors": 0o604, "config.json": 0o666, "tokenizer.json": 0o604, "original": 0o705}
    for name, value in modes.items():
        os.chmod(out / name, value)
    os.chmod(out, 0o2755)
    execute(models.retie(model), Target(out, **how), reinspect=models.inspect)
    assert {name: mode(out / name) for name in modes} == modes if "in_place" in how else True
    assert mode(out / "model.safetensors") == 0o604
    assert mode(out) == 0o2755


@pytest.mark.skipif(os.geteuid() != 0, reason="changing owners takes root")
@pytest.mark.parametrize("plan", [models.retie, models.set_config])
def test_owner_in_place(model: Path, plan: Any) -> None:
    """Root does not take a model from its owner."""
    for path in (model, *model.rglob("*")):
        os.chown(path, 1234, 2345)
    execute(plan(model), Target(model, in_place=True), reinspect=models.inspect)
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (model, *model.rglob("*"))}
    assert owners == {(1234, 2345)}


def test_snapshot_of_the_hub_cache(tmp_path: Path) -> None:
    """Links into blobs become files of the new model; the blobs stay."""
    snapshot = models.single(tmp_path / "models--o--n" / "snapshots" / "abc")
    blobs = tmp_path / "models--o--n" / "blobs"
    blobs.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        os.rename(snapshot / name, blobs / name)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", name))
    before = models.digest(blobs)
    for option in (False, True):
        out = tmp_path / f"out{option}"
        execute(models.retie(snapshot), Target(out, hardlink=option), reinspect=models.inspect)
        assert not any(path.is_symlink() for path in out.rglob("*"))
        assert (out / "tokenizer.json").read_bytes() == (blobs / "tokenizer.json").read_bytes()
    assert os.path.samefile(out / "tokenizer.json", blobs / "tokenizer.json")
    assert models.digest(blobs) == before


def test_hardlink(model: Path, tmp_path: Path) -> None:
    """--hardlink shares the files that do not change, and only those."""
    os.chmod(model / "tokenizer.json", 0o604)
    execute(models.retie(model), Target(tmp_path / "out", hardlink=True), reinspect=models.inspect)
    assert os.path.samefile(model / "tokenizer.json", tmp_path / "out" / "tokenizer.json")
    assert not os.path.samefile(model / "model.safetensors", tmp_path / "out" / "model.safetensors")
    assert mode(model / "tokenizer.json") == 0o604


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system at /dev/shm")
def test_hardlink_to_another_file_system(model: Path) -> None:
    """What cannot be linked is refused: it was asked for by name."""
    with pytest.raises(RefusedError, match="cannot hard-link"):
        execute(models.retie(model), Target(Path("/dev/shm/tieconv-out"), hardlink=True), reinspect=models.inspect)
    assert not os.path.lexists("/dev/shm/tieconv-out")


def test_to_another_file_system(model: Path) -> None:
    """Where the kernel does not copy between two file systems, it is done by hand."""
    out = Path(f"/dev/shm/tieconv-test-{os.getpid()}.safetensors")
    try:
        execute(models.retie(model / "model.safetensors"), Target(out), reinspect=models.inspect)
        assert models.HEAD not in models.tensor_bytes(out)
    finally:
        out.unlink(missing_ok=True)


def test_without_copy_file_range(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same output without the kernel's help."""
    execute(models.with_bias(model), Target(tmp_path / "a"), reinspect=models.inspect)
    monkeypatch.delattr(os, "copy_file_range")
    execute(models.with_bias(model), Target(tmp_path / "b", verify="structure"), reinspect=models.inspect)
    assert models.digest(tmp_path / "a") == models.digest(tmp_path / "b")


@pytest.mark.parametrize("plan", [models.retie, models.set_config])
def test_in_place(shards: Path, plan: Any) -> None:
    """In place gives what -o gives; a hard-linked twin keeps the old content; git history stays."""
    (shards / ".git").mkdir()
    (shards / ".git" / "HEAD").write_text("ref")
    (shards / ".git" / "link").symlink_to("HEAD")
    (shards / "empty").mkdir()
    beside = shards.parent
    os.link(shards / "config.json", beside / "twin.json")
    made = plan(shards)
    execute(made, Target(beside / "out"), reinspect=models.inspect)
    untouched = next(link.name for link in made.links if link.name.endswith("safetensors"))
    inode, twin = (shards / untouched).stat().st_ino, (beside / "twin.json").read_bytes()
    execute(made, Target(shards, in_place=True), reinspect=models.inspect)
    found = {name: digest for name, digest in models.digest(shards).items() if not name.startswith(".git")}
    assert found == models.digest(beside / "out")
    assert (shards / ".git" / "HEAD").read_text() == "ref"
    assert os.readlink(shards / ".git" / "link") == "HEAD"
    assert (shards / "empty").is_dir()
    assert (shards / untouched).stat().st_ino == inode
    assert (beside / "twin.json").read_bytes() == twin
    assert models.strays(beside) == []


def test_in_place_from_within(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may stand in the model: it then stands in the new one."""
    monkeypatch.chdir(model)
    plan = models.retie(model)
    assert replaces_directory(plan, Target(model, in_place=True))
    assert not replaces_directory(models.set_config(model), Target(model, in_place=True))
    for out, overwrite in ((model, True), (model, False), (model.parent / "new", True)):
        assert replaces_directory(plan, Target(out, overwrite=overwrite)) is (overwrite and out == model)
    execute(plan, Target(Path(), in_place=True), reinspect=models.inspect)
    assert Path("config.json").read_text() == plan.texts[0].text


def test_in_place_through_a_link(model: Path, tmp_path: Path) -> None:
    """A link to the model stays a link to the model."""
    (tmp_path / "link").symlink_to(model)
    execute(models.retie(tmp_path / "link"), Target(tmp_path / "link", in_place=True), reinspect=models.inspect)
    assert (tmp_path / "link").is_symlink()
    assert models.inspect(model).config.effective


def test_in_place_without_exchange(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where directories cannot be exchanged, in place is refused before anything is written."""
    monkeypatch.setattr(publish, "exchange", models.failing(errno.EINVAL))
    before = models.digest(model)
    with pytest.raises(RefusedError) as caught:
        execute(models.retie(model), Target(model, in_place=True), reinspect=models.inspect)
    assert "-o" in caught.value.command_hint
    assert models.digest(model) == before
    assert models.strays(model.parent) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_overwrite(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    """The old OUT goes as a whole; nothing of it is mixed into the new one."""
    out = models.sharded(tmp_path / "out")
    os.chmod(out, 0o2750)
    if not exchange:
        monkeypatch.setattr(publish, "exchange", models.failing(errno.EINVAL))
    execute(models.retie(model), Target(out, overwrite=True), reinspect=models.inspect)
    assert models.files_under(out) == models.files_under(model)
    assert mode(out) == 0o2750
    assert models.strays(tmp_path) == []


def test_overwrite_says_what_goes(model: Path, tmp_path: Path) -> None:
    """Files of a model that OUT alone has go with a note. Those with a name in the new model need none."""
    out = models.single(tmp_path / "out")
    execute(models.retie(model), Target(out, overwrite=True), reinspect=models.inspect)
    assert removal_notes(models.retie(model), Target(out, overwrite=True)) == ()
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "org/a--modeling_a.Model"}}))
    gone = ["1_Pooling/config.json", "LICENSE", "additional_chat_templates/rag.jinja", "model.fp16.safetensors",
            "modeling_a.py", "onnx/model_q4.onnx", "tf_model.h5"]  # fmt: skip
    for name in ("1_Pooling", "additional_chat_templates", "onnx"):
        (out / name).mkdir()
    for name in gone:
        (out / name).write_text("x")
    written = execute(models.retie(model), Target(out, overwrite=True), reinspect=models.inspect)
    assert written == (f"{out} is replaced and loses 7 files that the new model lacks: "
                       f"{', '.join(gone[:3])}, … and 4 more",)  # fmt: skip
    assert models.files_under(out) == models.files_under(model)
    (out / "onnx").mkdir()
    (out / "model.safetensors").rename(out / "onnx" / "model.onnx")
    execute(models.retie(model), Target(out, overwrite=True), reinspect=models.inspect)
    assert models.files_under(out) == models.files_under(model)
    (out / "modeling_b.py").write_text("x")
    with pytest.raises(DestinationError, match=r"also holds modeling_b\.py, which"):
        execute(models.retie(model), Target(out, overwrite=True), reinspect=models.inspect)


def test_overwrite_fails_in_the_last_step(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new model cannot take its name, the old one gets it back."""
    out = models.sharded(tmp_path / "out")
    before = models.digest(out)
    monkeypatch.setattr(publish, "exchange", models.failing(errno.EINVAL))
    rename = os.rename

    def fail_second(old: Path, new: Path, **at: int) -> None:
        if Path(new) == out and Path(old).name == "new":
            raise OSError(5, "Input/output error")
        rename(old, new, **at)

    monkeypatch.setattr(os, "rename", fail_second)
    with pytest.raises(Exception, match="input/output error"):
        execute(models.retie(model), Target(out, overwrite=True), reinspect=models.inspect)
    assert models.digest(out) == before
    assert models.strays(tmp_path) == []


def test_out_appears_meanwhile(model: Path, tmp_path: Path) -> None:
    """An OUT that another program makes during the write is not overwritten, be it empty."""
    out = tmp_path / "out"

    def appear(path: Path) -> Any:
        out.mkdir(exist_ok=True)
        return models.inspect(path)

    with pytest.raises(DestinationError):
        execute(models.retie(model), Target(out), reinspect=appear)
    assert os.listdir(out) == []
    assert models.strays(tmp_path) == []
    (tmp_path / "staged").mkdir()
    with pytest.raises(DestinationError):
        publish.publish_new(tmp_path / "staged", out)


@pytest.mark.parametrize(
    ("name", "in_place"),
    [("model.safetensors", True), ("model.safetensors", False), ("tokenizer.json", True), ("tokenizer.json", False),
     ("new.txt", True)],
)  # fmt: skip
def test_source_changes_meanwhile(model: Path, tmp_path: Path, name: str, in_place: bool) -> None:
    """A source file that changes during the write stops it before the rename; so does a new one in place."""

    def change(path: Path) -> Any:
        (model / name).write_bytes((model / name).read_bytes() + b"x" if (model / name).exists() else b"x")
        return models.inspect(path)

    with pytest.raises(StalePlanError):
        execute(models.retie(model), Target(tmp_path / "out", in_place=in_place), reinspect=change)
    assert not os.path.lexists(tmp_path / "out")
    assert (model / name).exists()
    assert models.strays(tmp_path) == []


def test_file_that_appears_in_the_last_instant(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another program puts into the model just before the exchange is carried over."""
    exchange = publish.exchange

    def late(first: Path, second: Path) -> None:
        if second == model:
            (model / "notes.txt").write_text("mine")
        exchange(first, second)

    monkeypatch.setattr(publish, "exchange", late)
    execute(models.retie(model), Target(model, in_place=True), reinspect=models.inspect)
    assert (model / "notes.txt").read_text() == "mine"


def test_nothing_to_change(model: Path, tmp_path: Path) -> None:
    """A plan without changes makes a copy, and in place does nothing."""
    plan = models.plan_of(model)
    execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    assert models.digest(tmp_path / "out") == models.digest(model)
    execute(plan, Target(model, in_place=True), reinspect=models.inspect)
    assert models.digest(tmp_path / "out") == models.digest(model)


def test_scaling_that_would_round(tmp_path: Path) -> None:
    """A product that has no exact value is refused, and nothing is left."""
    source = tmp_path / "source"
    source.mkdir()
    models.write_weights(source / "model.safetensors", {models.EMBED: ("BF16", (2,), b"\x81\x00\x00\x3f")})
    tensor = models.checkpoint(source).files[0].tensors[0]
    head = OutputTensor(models.HEAD, "BF16", (2,), Scaled(tensor.range, "BF16", -2))
    plan = models.plan_of(source, [OutputWeights("model.safetensors", (head,), None)], promises=Promises(None, ()))
    with pytest.raises(RefusedError, match="exactly"):
        execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    assert os.listdir(tmp_path) == ["source"]


def test_progress(model: Path, tmp_path: Path) -> None:
    """Progress rises and ends at the total."""
    calls: list[tuple[int, int]] = []
    more: Any = {"reinspect": models.inspect, "progress": lambda done, total: calls.append((done, total))}
    execute(models.retie(model), Target(tmp_path / "out"), **more)
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] > 0


def test_in_a_thread(model: Path, tmp_path: Path) -> None:
    """Outside the main thread no signal handler is touched and all else is the same."""
    arguments = {"reinspect": models.inspect}
    thread = threading.Thread(target=execute, args=(models.retie(model), Target(tmp_path / "out")), kwargs=arguments)
    thread.start()
    thread.join()
    assert models.files_under(tmp_path / "out") == models.files_under(model)


def test_long_name(model: Path, tmp_path: Path) -> None:
    """A name of the greatest length still has room for a staging directory."""
    out = tmp_path / ("ü" * 127)
    execute(models.retie(model), Target(out), reinspect=models.inspect)
    assert out.is_dir()


def test_leftovers_inside_the_model_do_not_come_along(model: Path, tmp_path: Path) -> None:
    """What a killed run left in the source is no part of the model."""
    (model / ".config.json.tieconv-staging").mkdir()
    (model / ".config.json.tieconv-staging" / "owner").write_text("{}")
    execute(models.retie(model), Target(tmp_path / "out"), reinspect=models.inspect)
    assert models.strays(tmp_path / "out") == []
