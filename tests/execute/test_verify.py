"""A planted fault is found, named, and leaves nothing behind; a record of copied ranges is not simply believed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tieconv.checkpoint.write_plan import OutputTensor, OutputWeights, Plan, Promises, Scaled, TiePromise
from tieconv.errors import UnreadableError, VerificationError
from tieconv.execute import file_layout, write
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target
from tieconv.execute.verify import Verifier
from tieconv.execute.write import Record, Shared
from tieconv.formats.safetensors import encode_header

from . import models

Damage = Callable[[Path], None]


def flip(name: str, position: int) -> Damage:
    """A bit of the staged file turns; a negative position counts from the end."""

    def damage(new: Path) -> None:
        data = bytearray((new / name).read_bytes())
        data[position] ^= 1
        with (new / name).open("r+b") as stream:
            stream.write(data)

    return damage


def cut(new: Path) -> None:
    os.truncate(new / "model.safetensors", 5000)


def longer(new: Path) -> None:
    with (new / "model.safetensors").open("ab") as stream:
        stream.write(b"\0")


def lost(new: Path) -> None:
    os.unlink(new / "original" / "params.json")


def stray(new: Path) -> None:
    (new / "stray").write_text("x")


def other_header(new: Path) -> None:
    path = new / "model.safetensors"
    old = models.read_header(path)
    entries = [(t.name, "I16" if t.dtype == "BF16" else t.dtype, t.shape, t.nbytes) for t in old.tensors]
    path.write_bytes(encode_header(entries, old.metadata) + path.read_bytes()[old.data_start :])


def other_metadata(new: Path) -> None:
    path = new / "model.safetensors"
    old = models.read_header(path)
    entries = [(t.name, t.dtype, t.shape, t.nbytes) for t in old.tensors]
    path.write_bytes(encode_header(entries, {}) + path.read_bytes()[old.data_start :])


def swapped(new: Path) -> None:
    path = new / "model.safetensors"
    old = models.read_header(path)
    entries = [(t.name, t.dtype, t.shape, t.nbytes) for t in old.tensors]
    names = [entry[0] for entry in entries]
    names[1], names[3] = names[3], names[1]
    renamed = [(name, *entry[1:]) for name, entry in zip(names, entries, strict=True)]
    path.write_bytes(encode_header(renamed, old.metadata) + path.read_bytes()[old.data_start :])


def expect(
    plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, verify: Any, **options: Any
) -> VerificationError:
    """Damage what is staged, after it was written and before it is proved."""
    before = models.digest(Path(plan.checkpoint.root))
    original = write.Syncer.add
    seen: set[str] = set()

    def add(self: Any, descriptor: int) -> None:
        original(self, descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        new = next((parent for parent in path.parents if parent.name == "new"), None)
        total = len(plan.weights) + len(plan.texts) + len(plan.links)
        seen.add(str(path))
        if new is not None and len(seen) == total:
            damage(new)

    monkeypatch.setattr(write.Syncer, "add", add)
    with pytest.raises(VerificationError) as caught:
        execute(plan, Target(out, verify=verify, **options), reinspect=models.inspect)
    assert not os.path.lexists(out)
    assert models.strays(out.parent) == []
    assert models.digest(Path(plan.checkpoint.root)) == before
    return caught.value


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (flip("model.safetensors", -1), models.HEAD),
        (flip("model.safetensors", 12_000), models.EMBED),
        (flip("model.safetensors", 4), "malformed"),
        (flip("config.json", 3), "config.json"),
        (flip("tokenizer.json", 8000), "tokenizer.json"),
        (cut, "malformed"),
        (longer, "malformed"),
        (lost, "params.json"),
        (stray, "stray"),
        (other_header, "model.layers.0.weight"),
        (other_metadata, "metadata"),
        (swapped, models.EMBED),
    ],
)
def test_planted_damage(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, named: str
) -> None:
    """Whatever is not as promised is found by the full proof, by file and tensor."""
    plan = dataclasses.replace(models.with_bias(model), texts=(models.tied_config(False),))
    plan = dataclasses.replace(plan, links=tuple(link for link in plan.links if link.name != "config.json"))
    if damage is other_header:
        named = models.EMBED
    error = expect(plan, tmp_path / "out", monkeypatch, damage, "full")
    assert named in error.message or (damage is lost and "cannot be opened" in error.message)


@pytest.mark.parametrize("position", [-1, 4096 + 128, 12_000])
def test_structure_trusts_the_kernel_only(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """Without the byte proof, ranges that were copied by hand are still compared."""
    monkeypatch.delattr(os, "copy_file_range")
    error = expect(
        models.with_bias(model), tmp_path / "out", monkeypatch, flip("model.safetensors", position), "structure"
    )
    assert "tensor" in error.message


def test_structure_compares_zeros(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros were written by hand."""
    plan = models.with_bias(model)
    start = len(file_layout.header(plan.weights[0]))
    error = expect(plan, tmp_path / "out", monkeypatch, flip("model.safetensors", start + 3), "structure")
    assert "lm_head.bias" in error.message


def test_scaled_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scaled tensor with one wrong bit is found."""
    source = tmp_path / "source"
    source.mkdir()
    models.write_weights(source / "model.safetensors", {models.EMBED: ("BF16", (64, 64), models.numbers(4096, 3))})
    tensor = models.checkpoint(source).files[0].tensors[0]
    head = OutputTensor(models.HEAD, "BF16", (64, 64), Scaled(tensor.range, "BF16", 5))
    plan = models.plan_of(source, [OutputWeights("model.safetensors", (head,), None)])
    error = expect(plan, tmp_path / "out", monkeypatch, flip("model.safetensors", -2), "structure")
    assert models.HEAD in error.message


def test_a_copy_that_goes_wrong(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that writes one wrong byte does not get past the proof."""
    real = os.copy_file_range

    def wrong(source: int, target: int, size: int, start: int, offset: int) -> int:
        done = real(source, target, size, start, offset)
        os.pwrite(target, bytes([os.pread(target, 1, offset)[0] ^ 0x80]), offset)
        return done

    monkeypatch.setattr(os, "copy_file_range", wrong)
    with pytest.raises(VerificationError, match="tensor"):
        execute(models.retie(model), Target(tmp_path / "out"), reinspect=models.inspect)
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("promises", "named"),
    [
        (Promises(False, ()), "tied"),
        (Promises(None, (TiePromise("other", True, (), ()),)), "other"),
        (Promises(None, (TiePromise(models.EMBED, False, (), ()),)), "the written config declares tied = "),
        (Promises(None, (TiePromise(models.EMBED, True, (models.HEAD,), ()),)), models.HEAD),
        (Promises(None, (TiePromise(models.EMBED, True, (), (models.EMBED,)),)), models.EMBED),
    ],
)
def test_broken_promises(model: Path, tmp_path: Path, promises: Promises, named: str, in_place: bool) -> None:
    """What a fresh inspection finds must be what the plan promised."""
    plan = dataclasses.replace(models.retie(model), promises=promises)
    before = models.digest(model)
    with pytest.raises(VerificationError, match=named):
        execute(plan, Target(tmp_path / "out", in_place=in_place), reinspect=models.inspect)
    assert os.listdir(tmp_path) == ["source"]
    assert models.digest(model) == before


def test_inspection_that_fails(model: Path, tmp_path: Path) -> None:
    """An output that cannot be inspected is not published."""

    def reinspect(_path: Path) -> Any:
        raise UnreadableError("no")

    with pytest.raises(VerificationError, match="cannot inspect the written model: no"):
        execute(models.retie(model), Target(tmp_path / "out"), reinspect=reinspect)
    assert os.listdir(tmp_path) == ["source"]


def test_a_lone_file_is_inspected_with_its_config(model: Path, tmp_path: Path) -> None:
    """The config that the plan was made with lies beside the staged file, and is not published."""
    plan = models.retie(model / "model.safetensors")
    config = models.checkpoint(model).config
    plan = dataclasses.replace(plan, checkpoint=dataclasses.replace(plan.checkpoint, config=config))
    seen: list[list[str]] = []

    def reinspect(path: Path) -> Any:
        seen.append(sorted(os.listdir(path.parent)))
        return SimpleNamespace(config=SimpleNamespace(effective=False), ties=models.inspect(path).ties)

    execute(plan, Target(tmp_path / "x.safetensors"), reinspect=reinspect)
    assert seen == [["config.json", "x.safetensors"]]
    assert sorted(os.listdir(tmp_path)) == ["source", "x.safetensors"]


NAME, OTHER = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def written(shards: Path, new: Path) -> tuple[OutputWeights, int]:
    """A copy of the first shard with one wrong byte in its last tensor, what was planned, and where the byte is."""
    data = bytearray((shards / NAME).read_bytes())
    file = models.read_header(shards / NAME)
    wrong = file.tensors[-1].range.start + 7
    data[wrong] ^= 1
    new.mkdir()
    (new / NAME).write_bytes(data)
    return OutputWeights(NAME, tuple(map(models.kept, file.tensors)), file.metadata), wrong


def verify(shards: Path, new: Path, output: OutputWeights, *shared: Shared, full: bool = False) -> None:
    Verifier(shards, new, Record(shared={NAME: list(shared)}), full, lambda _: None).weights(output, NAME)


@pytest.mark.parametrize(
    "forged",
    [
        lambda wrong: Shared(0, 1 << 20, OTHER, 0),
        lambda wrong: Shared(0, 1 << 20, "absent", 0),
        lambda wrong: Shared(0, 1 << 20, NAME, 8),
        lambda wrong: Shared(0, 1 << 20, NAME, -1),
        lambda wrong: Shared(0, wrong, NAME, 0),
        lambda wrong: Shared(wrong + 1, 1 << 20, NAME, 0),
    ],
    ids=["another file", "no file", "shifted", "shifted back", "ends before", "starts after"],
)
def test_a_forged_record_is_not_trusted(forged, shards: Path, tmp_path: Path) -> None:
    """A range of the wrong file, at the wrong shift or beside the damage proves nothing: the bytes are compared."""
    output, wrong = written(shards, tmp_path / "new")
    with pytest.raises(VerificationError, match=f"byte {wrong:,} of the file") as caught:
        verify(shards, tmp_path / "new", output, forged(wrong))
    assert caught.value.code == "verify.bytes"
    assert models.tensors_of().keys() >= {output.tensors[-1].name}
    assert output.tensors[-1].name in caught.value.message


def test_several_ranges_leave_no_gap(shards: Path, tmp_path: Path) -> None:
    """Ranges in any order, overlapping, that leave out one byte leave that byte to be compared."""
    output, wrong = written(shards, tmp_path / "new")
    around = [Shared(wrong + 1, 1 << 20, NAME, 0), Shared(0, wrong - 9, NAME, 0), Shared(wrong - 20, wrong, NAME, 0)]
    with pytest.raises(VerificationError, match=f"byte {wrong:,} of the file"):
        verify(shards, tmp_path / "new", output, *around)


def test_what_the_kernel_copied_is_trusted(shards: Path, tmp_path: Path) -> None:
    """The same damage under a true record passes the structural proof, and not the full one."""
    output, wrong = written(shards, tmp_path / "new")
    verify(shards, tmp_path / "new", output, Shared(0, 1 << 20, NAME, 0))
    with pytest.raises(VerificationError, match=f"byte {wrong:,} of the file"):
        verify(shards, tmp_path / "new", output, Shared(0, 1 << 20, NAME, 0), full=True)


@pytest.mark.parametrize(("key", "file"), [("tokenizer.json", "config.json"), ("config.json", "tokenizer.json")])
def test_a_companion_of_another_name(key: str, file: str, model: Path, tmp_path: Path) -> None:
    """A record of another companion, or of another source, proves nothing of this one."""
    new = tmp_path / "new"
    new.mkdir()
    data = bytearray((model / "tokenizer.json").read_bytes())
    data[-3] ^= 1
    (new / "tokenizer.json").write_bytes(data)
    record = Record(shared={key: [Shared(0, len(data), file, 0)]})
    with pytest.raises(VerificationError, match=r"tokenizer.json differs from its source at byte 9,0\d\d") as caught:
        Verifier(model, new, record, False, lambda _: None).companion("tokenizer.json")
    assert caught.value.code == "verify.bytes"
