"""What is refused before the first byte, and what the operating system refuses: nothing is left behind."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import failure_of
from tieconv.checkpoint.write_plan import LinkFile, OutputText, OutputWeights, Plan
from tieconv.errors import DestinationError, RefusedError, StalePlanError, TieconvError, WriteFailedError
from tieconv.execute import file_layout, publish, target as checks, target as checks_module, tree, verify
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target, check_target

from . import models
from .conftest import Mount


def refused(plan: Plan, target: Target, kind: type[TieconvError], code: str) -> TieconvError:
    """Both the dry check and the execution refuse, and the tree is untouched."""
    around = Path(plan.checkpoint.root).parent
    before = models.digest(around)
    for call, options in ((check_target, {}), (execute, {"reinspect": models.inspect})):
        error = failure_of(call, kind, plan, target, **options)
        assert error.code == code, error.message
    assert models.digest(around) == before
    assert models.strays(around) == []
    return error


def _directory(path: Path, name: str = "") -> Path:
    path.mkdir()
    if name:
        (path / name).write_text("mine")
    return path


def _with(path: Path, name: str) -> Path:
    """A model with one more file."""
    models.single(path)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("mine")
    return path


def _link(path: Path, to: Path) -> Path:
    path.symlink_to(to)
    return path


def over(path: Path) -> Target:
    return Target(path, overwrite=True)


OUT: dict[str, tuple[Callable[[Path, Path], Target], str, str]] = {
    # OUT of a model in a directory, the code of the refusal, and a word of the hint
    "exists": (lambda _, top: Target(_directory(top / "out")), "out.exists", "--overwrite"),
    "no model": (lambda _, top: over(_directory(top / "out", "notes.txt")), "out.not-a-model", ""),
    "a backup": (lambda _, top: over(_directory(top / "out", "m.safetensors.bak")), "out.not-a-model", ""),
    "a git repository": (
        lambda _, top: over(_directory(models.single(top / "out") / ".git", "HEAD").parent), "out.not-a-model", ""
    ),
    "only a config": (lambda _, top: over(_directory(top / "out", "config.json")), "out.not-a-model", ""),
    "training state": (lambda _, top: over(_with(top / "out", "optimizer.safetensors")), "out.more-files", "move"),
    "notes": (lambda _, top: over(_with(top / "out", "precious/notes.txt")), "out.more-files", "move"),
    "Megatron's state": (lambda _, top: over(_with(top / "out", "model_optim_rng.pt")), "out.more-files", "move"),
    "a data set": (lambda _, top: over(_with(top / "out", "train-00000-of-00002.parquet")), "out.more-files", "move"),
    "another model's file": (lambda _, top: over(_with(top / "out", "b.safetensors")), "out.more-files", "move"),
    "a script": (lambda _, top: over(_with(top / "out", "train.py")), "out.more-files", "move"),
    "a second model": (lambda _, top: over(_with(top / "out", "a/model.safetensors")), "out.more-files", "move"),
    "the source": (lambda model, _: over(model), "out.is-source", ""),
    "the source by dots": (lambda model, _: over(model / "original" / ".."), "out.is-source", ""),
    "the source by a link": (lambda model, top: over(_link(top / "link", model)), "out.is-source", ""),
    "inside": (lambda model, _: Target(model / "out"), "out.inside-source", ""),
    "inside by a link": (lambda model, top: Target(_link(top / "link", model) / "out"), "out.inside-source", ""),
    "around": (lambda _, top: over(top), "out.around-source", ""),
    "a dangling link": (lambda _, top: over(_link(top / "link", top / "nowhere")), "out.link", ""),
    "without a parent": (lambda _, top: Target(top / "a" / "b"), "out.no-parent", "mkdir"),
}  # fmt: skip


@pytest.mark.parametrize("case", OUT)
def test_out_is_refused(model: Path, tmp_path: Path, case: str) -> None:
    """Nothing is replaced but a model that is not the source, nothing is written through a link or into a model."""
    make, code, hint = OUT[case]
    error = refused(models.retie(model), make(model, tmp_path), DestinationError, code)
    assert hint in f"{error.hint} {error.command_hint}"


def test_overwrite_of_a_file_needs_the_suffix(model: Path, tmp_path: Path) -> None:
    """A lone file overwrites a .safetensors file and nothing else."""
    plan = models.retie(model / "model.safetensors")
    (tmp_path / "out.bin").write_bytes(b"x")
    refused(plan, Target(tmp_path / "out.bin", overwrite=True), DestinationError, "out.suffix")
    refused(plan, Target(tmp_path / "new"), DestinationError, "out.suffix")
    (tmp_path / "d.safetensors").mkdir()
    refused(plan, Target(tmp_path / "d.safetensors", overwrite=True), DestinationError, "out.not-a-model")


def test_out_is_a_hard_link_to_the_source(model: Path, tmp_path: Path) -> None:
    """A second name of the source file is the source file."""
    os.link(model / "model.safetensors", tmp_path / "twin.safetensors")
    plan = models.retie(model / "model.safetensors")
    error = refused(plan, Target(tmp_path / "twin.safetensors", overwrite=True), DestinationError, "out.is-source")
    assert "or use --in-place" in error.command_hint


def test_parent_is_read_only(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that may not be written is named (root may write everywhere, so the answer is planted)."""
    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)
    refused(models.retie(model), Target(tmp_path / "out"), DestinationError, "out.read-only")


def test_hub_cache_is_not_changed_in_place(tmp_path: Path) -> None:
    """A snapshot's blobs are shared; -o works, --in-place does not."""
    repository = tmp_path / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    snapshot = models.single(repository / "snapshots" / "abc")
    error = refused(models.retie(snapshot), Target(snapshot, in_place=True), RefusedError, "in-place.hub-cache")
    assert "-o" in error.command_hint


def test_linked_weights_are_not_changed_in_place(model: Path) -> None:
    """Where a weight file is a link, in place would leave the target as it was."""
    os.rename(model / "model.safetensors", model / "blob")
    (model / "model.safetensors").symlink_to("blob")
    refused(models.set_config(model), Target(model, in_place=True), RefusedError, "in-place.link")


def test_special_files(model: Path, tmp_path: Path) -> None:
    """What is no regular file cannot come along, and is named."""
    os.mkfifo(model / "pipe")
    plan = models.retie(model)
    plan = dataclasses.replace(plan, checkpoint=dataclasses.replace(plan.checkpoint, special=("pipe",)))
    with pytest.raises(RefusedError, match="pipe"):
        check_target(plan, Target(tmp_path / "out"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_stale_plan(model: Path, tmp_path: Path, name: str) -> None:
    """A file that changed since the plan was made, or is gone, stops it."""
    plan = models.retie(model)
    os.utime(model / name, ns=(1, 1))
    error = refused(plan, Target(tmp_path / "out"), StalePlanError, "plan.stale")
    assert name in error.message
    os.unlink(model / name)
    refused(plan, Target(tmp_path / "out"), StalePlanError, "plan.stale")


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/../b", "", ".", "a//b", "a\0b"])
def test_unsafe_output_names(model: Path, tmp_path: Path, name: str) -> None:
    """No output name leads out of OUT."""
    plan = dataclasses.replace(models.retie(model), texts=(OutputText(name, ""),))
    refused(plan, Target(tmp_path / "out"), RefusedError, "out.unsafe-name")


@pytest.mark.parametrize("name", ["CONFIG.json", "Model.safetensors", "con\uff46ig.json"])
def test_names_that_differ_by_case(model: Path, tmp_path: Path, name: str) -> None:
    """Two outputs that one name on another file system would merge are refused."""
    plan = models.retie(model)
    plan = dataclasses.replace(plan, links=(*plan.links, LinkFile(name, 1)))
    if name.isascii():
        refused(plan, Target(tmp_path / "out"), RefusedError, "out.case-collision")
    else:  # a full-width letter is another letter everywhere
        checks_module.check_names(plan)


def test_a_lone_file_has_one_output(model: Path, tmp_path: Path) -> None:
    """A plan for one file that also changes a document needs the directory."""
    plan = dataclasses.replace(models.retie(model / "model.safetensors"), texts=(models.tied_config(True),))
    error = refused(plan, Target(tmp_path / "out.safetensors"), RefusedError, "out.one-file")
    assert "directory" in error.hint


def test_too_little_space(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what is needed and what is free, in bytes."""
    monkeypatch.setattr(checks_module, "free_bytes", lambda _directory: 1234)
    monkeypatch.setattr(checks_module, "can_clone", lambda *_args: False)
    plan = models.retie(model)
    error = refused(plan, Target(tmp_path / "out"), WriteFailedError, "write.no-space")
    needed = plan.bytes_written + plan.bytes_linked
    assert f"({needed:,} bytes) needed" in error.message
    assert "1,234 bytes) free" in error.message


def test_shared_blocks_need_no_space(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks can be shared, a nearly full disk is no reason to refuse."""
    monkeypatch.setattr(checks_module, "free_bytes", lambda _directory: 12_000)
    monkeypatch.setattr(checks_module, "can_clone", lambda *_args: True)
    check_target(models.retie(model), Target(tmp_path / "out"))


def test_mount_point_in_place(tmp_path: Path, mount: Mount) -> None:
    """A mount point cannot be exchanged: two changes are refused, one is made from within."""
    source = models.single(mount("tmpfs", 8) / "inner")
    top = source.parent
    for path in source.iterdir():
        os.rename(path, top / path.name)
    source.rmdir()
    error = refused(models.retie(top), Target(top, in_place=True), RefusedError, "in-place.mount")
    assert re.search("-o", error.command_hint)
    execute(models.set_config(top), Target(top, in_place=True), reinspect=models.inspect)
    assert models.inspect(top).config.effective
    assert models.strays(tmp_path) == []


@pytest.mark.parametrize("inside", ["snapshots/abc/out", "snapshots/out", "blobs/out", "snapshots/abc/model"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_out_in_the_hub_cache(model: Path, tmp_path: Path, inside: str, overwrite: bool) -> None:
    """The cache would give a changed model as the published one: refused as for --in-place, through links too."""
    repository = tmp_path / "hub" / "models--o--n"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "blobs").mkdir()
    models.single(repository / "snapshots" / "abc" / "model")
    (tmp_path / "link").symlink_to(repository)
    before = models.digest(tmp_path)
    for root in (repository, tmp_path / "link"):
        with pytest.raises(DestinationError, match="is in the Hub cache") as caught:
            execute(models.retie(model), Target(root / inside, overwrite=overwrite), reinspect=models.inspect)
        assert caught.value.code == "out.hub-cache"
        lone = models.retie(model / "model.safetensors")
        with pytest.raises(DestinationError, match="is in the Hub cache"):
            execute(lone, Target(root / f"{inside}.safetensors", overwrite=overwrite), reinspect=models.inspect)
    assert models.digest(tmp_path) == before


def test_shared_blobs_of_the_hub_cache(model: Path, tmp_path: Path) -> None:
    """Blobs that repositories share are refused for -o and in place; a directory that is only called blobs is not."""
    shared = tmp_path / "hub" / "blobs" / "ab"
    shared.mkdir(parents=True)
    source = model / "model.safetensors"
    os.rename(source, shared / "twin.safetensors")
    source.symlink_to(shared / "twin.safetensors")
    execute(models.retie(shared / "twin.safetensors"), Target(shared / "o.safetensors"), reinspect=models.inspect)
    (tmp_path / "hub" / "models--o--n").mkdir()
    plan, twin = models.retie(shared / "twin.safetensors"), Target(shared / "twin.safetensors", in_place=True)
    with pytest.raises(DestinationError, match="is in the Hub cache"):
        execute(plan, Target(shared / "p.safetensors"), reinspect=models.inspect)
    with pytest.raises(RefusedError, match="Hub cache"):
        execute(plan, twin, reinspect=models.inspect)
    assert sorted(os.listdir(shared)) == ["o.safetensors", "twin.safetensors"]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 20,000 bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def fails(plan: Any, target: Target, match: str) -> WriteFailedError:
    around = Path(plan.checkpoint.root).parent
    before = models.digest(around)
    with pytest.raises(WriteFailedError, match=match) as caught:
        execute(plan, target, reinspect=models.inspect)
    assert models.digest(around) == before
    assert models.strays(around) == []
    return caught.value


@pytest.mark.parametrize("in_place", [False, True])
def test_file_size_limit(model: Path, tmp_path: Path, small_files: None, in_place: bool) -> None:
    """A file that may not grow so far is an error, not a killed process."""
    error = fails(models.retie(model), Target(tmp_path / "out", in_place=in_place), "file too large")
    assert "model.safetensors" in error.message
    assert "needed" in error.message


@pytest.mark.parametrize("overwrite", [False, True])
def test_full_disk(tmp_path: Path, mount: Mount, overwrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, as found before the first byte or in the middle of the write."""
    disk = mount("tmpfs", 2)
    source = models.single(disk / "source", rows=2048)
    if overwrite:
        models.single(disk / "out", rows=16)
    with pytest.raises(WriteFailedError, match=r"not enough space.*bytes\) needed.*bytes\) free"):
        execute(models.retie(source), Target(disk / "out", overwrite=overwrite), reinspect=models.inspect)
    monkeypatch.setattr(checks, "free_bytes", lambda _directory: 1 << 40)
    error = fails(models.retie(source), Target(disk / "out", overwrite=overwrite), "no space left on device")
    assert "needed" in error.message
    assert "free" in error.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("option", [{}, {"in_place": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    "call",
    ["fsync", "pwrite", "copy_file_range", "mkdir", "preadv", "exchange", "sync_directory", "fchmod", "ftruncate"],
)
def test_any_call_fails(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, option: dict[str, Any], call: str
) -> None:
    """Whatever call fails, and whatever is asked: all or nothing, and nothing left."""
    out = tmp_path / "out"
    if option.get("overwrite"):
        models.single(out, rows=16)
    where: Any = {"exchange": publish, "sync_directory": tree}.get(call, os)
    if call == "exchange" and not option:
        where, call = publish, "_renameat2"
    plan = models.retie(model)
    before = models.digest(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(where, call, models.failing(number))
        with pytest.raises(TieconvError) as caught:
            execute(plan, Target(out, **option), reinspect=models.inspect)
    assert os.strerror(number).lower() in caught.value.message
    assert models.digest(tmp_path) == before
    assert models.strays(tmp_path) == []


def test_what_was_written_cannot_be_read(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error in the middle of the proof is a failed write like any other."""
    monkeypatch.setattr(verify, "read_full", models.failing(errno.EIO))
    fails(models.retie(model), Target(tmp_path / "out"), "input/output error")


def test_old_out_that_cannot_be_listed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an error of the checks themselves reach the user as it is."""
    (tmp_path / "out").mkdir()
    plan = models.retie(model)
    monkeypatch.setattr(os, "listdir", models.failing(errno.EACCES))
    with pytest.raises(WriteFailedError, match="permission denied") as raised:
        checks.check_target(plan, Target(tmp_path / "out", overwrite=True))
    assert "write somewhere else" in raised.value.command_hint


def test_late_sync_failure(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that reports its error only at the sync keeps the model from getting its name."""
    real, count = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        count[0] += 1
        if count[0] == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    fails(models.retie(model), Target(tmp_path / "out"), "input/output error")


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("option", [{}, {"in_place": True}, {"overwrite": True}])
def test_name_that_does_not_become_durable(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], exchange: bool, lone: bool
) -> None:
    """A disk that fails at the very last sync gets its old names back."""
    out = tmp_path / ("out.safetensors" if lone else "out")
    if option.get("overwrite"):
        old = models.single(tmp_path / "old", rows=16)
        os.rename(old / "model.safetensors" if lone else old, out)
    if not exchange:
        if option.get("in_place") or lone:
            return  # refused, or not to be undone: the old file is gone, the new one whole
        monkeypatch.setattr(publish, "exchange", models.failing(errno.EINVAL))
    monkeypatch.setattr(publish, "sync_directory", models.failing(errno.EIO))
    source = model / "model.safetensors" if lone else model
    fails(models.retie(source), Target(out, **option), "input/output error")


def test_source_that_ends_early(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is cut while it is read is an error, not a loop."""
    real = file_layout.header

    def header(output: OutputWeights) -> bytes:
        os.truncate(model / "model.safetensors", 9000)
        return real(output)

    plan = models.retie(model)
    monkeypatch.setattr(file_layout, "header", header)
    monkeypatch.setattr(checks, "can_clone", lambda *_args: False)
    with pytest.raises(TieconvError, match="ended while it was read"):
        execute(plan, Target(tmp_path / "out"), reinspect=models.inspect)
    assert os.listdir(tmp_path) == ["source"]
