"""Torch files are written as promised: torch loads them, mapped or not, with their bytes and their sharing."""

from __future__ import annotations

import io
import json
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import tieconv
from tests.formats.test_torch_read import read, save, state_dicts, tensor_bytes
from tests.lazy import torch
from tests.patience import examples
from tieconv.checkpoint.write_plan import Plan, Promises
from tieconv.errors import DestinationError, RefusedError, TieconvError, UnreadableError, VerificationError
from tieconv.execute.carry_out import execute
from tieconv.execute.target import Target
from tieconv.formats.torch.archive import read_archive
from tieconv.formats.torch.state_dict import Archive, Placed, SavedTensor, _end, lay_out, pickle_state
from tieconv.plans.edits import Edits, files_of

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8, "hidden_size": 4,
    "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
}  # fmt: skip
CONTAINERS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def llama(folder: Path, state: Any, *, tied: bool = True, zipped: bool = True) -> Path:
    folder.mkdir(parents=True)
    save(folder / "pytorch_model.bin", state, zipped=zipped)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": tied}))
    return folder


def tied_state() -> dict[str, torch.Tensor]:
    table = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    return {EMBED: table, NORM: torch.ones(4), HEAD: table}


def sharded(folder: Path, shards: list[dict[str, torch.Tensor]], *, tied: bool = True) -> Path:
    folder.mkdir(parents=True)
    places = {}
    for number, state in enumerate(shards, 1):
        shard = f"pytorch_model-{number:05}-of-{len(shards):05}.bin"
        save(folder / shard, state)
        places |= dict.fromkeys(state, shard)
    seen = {t.data_ptr(): t.nbytes for state in shards for t in state.values()}
    index = {"metadata": {"total_size": sum(seen.values())}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": tied}))
    return folder


def load(path: Path, *, mmap: bool = True) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True, mmap=mmap)


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def run(edits: Edits, out: Path) -> None:
    """Execute the edits alone: no config, no promises."""
    files = files_of(edits)
    plan = Plan(
        "test", edits.checkpoint, dict(edits.checkpoint.states), files.operations, files.weights, files.texts,
        files.links, files.removed, Promises(None, ()), "",
    )  # fmt: skip
    execute(plan, Target(out), reinspect=tieconv.inspect)


@settings(max_examples=examples(60), deadline=None)
@given(state=state_dicts(), drop=st.integers(0, 7), copied=st.integers(0, 7), zipped=st.booleans())
def test_any_edit_of_any_state_dict(
    state: dict[str, torch.Tensor], drop: int, copied: int, zipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Drop a name, copy another, add zeros: torch loads what is kept, bit for bit and shared as before."""
    folder = tmp_path_factory.mktemp("torch")
    zipped = zipped or any(tensor.dtype in torch.storage._new_dtypes() for tensor in state.values())
    path = save(folder / "model.pt", state, zipped=zipped)
    edits = Edits(read(path))
    names = list(state)
    dropped, source = names[drop % len(names)], names[copied % len(names)]
    edits.copy("copy", edits.checkpoint.tensors[source])
    edits.fill("zeros", "F32", (2, 3), source)
    edits.drop(dropped, "a test")
    run(edits, folder / "out.pt")
    before = load(path, mmap=False)
    for mmap in (True, False):
        after = load(folder / "out.pt", mmap=mmap)
        assert set(after) == set(names) - {dropped} | {"copy", "zeros"}
        assert [name for name in after if name in names] == [name for name in names if name != dropped]
        assert not after["zeros"].any()
        for name, tensor in after.items():
            twin = before.get(source if name == "copy" else name)
            if twin is not None:
                assert (tensor.dtype, tensor.shape) == (twin.dtype, twin.shape)
                assert tensor_bytes(tensor) == tensor_bytes(twin)
        kept = [name for name in after if name in names and before[name].untyped_storage().nbytes()]
        for one in kept:
            for two in kept:
                assert shares(after[one], after[two]) == shares(before[one], before[two])
            assert not after["copy"].numel() or not shares(after["copy"], after[one])


@CONTAINERS
def test_untie_gives_the_head_a_storage_of_its_own(zipped: bool, tmp_path: Path) -> None:
    """An alias becomes a copy; tying again drops the name; the metadata of the modules stays."""
    module = torch.nn.Module()
    state = module.state_dict()
    state.update(tied_state())
    source = llama(tmp_path / "tied", state, zipped=zipped)
    tieconv.plan_untie(source).execute(tmp_path / "untied")
    untied = load(tmp_path / "untied" / "pytorch_model.bin")
    assert not shares(untied[EMBED], untied[HEAD])
    assert torch.equal(untied[EMBED], untied[HEAD])
    assert untied._metadata == state._metadata  # type: ignore[attr-defined]
    tieconv.plan_retie(tmp_path / "untied").execute(tmp_path / "back")
    assert list(load(tmp_path / "back" / "pytorch_model.bin")) == [EMBED, NORM]


def test_retie_of_an_alias_drops_the_name_and_no_byte(tmp_path: Path) -> None:
    """The storage stays as it is."""
    source = llama(tmp_path / "tied", tied_state())
    planned = tieconv.plan_retie(source)
    planned.execute(tmp_path / "out")
    assert "it shares its storage with" in str(planned.plan.operations)
    assert torch.equal(load(tmp_path / "out" / "pytorch_model.bin")[EMBED], tied_state()[EMBED])


def test_untie_writes_a_missing_head(tmp_path: Path) -> None:
    """As it does for safetensors."""
    state = tied_state()
    del state[HEAD]
    tieconv.plan_untie(llama(tmp_path / "tied", state)).execute(tmp_path / "out")
    after = load(tmp_path / "out" / "pytorch_model.bin")
    assert torch.equal(after[HEAD], after[EMBED])


def test_sharded_untie_and_retie(tmp_path: Path) -> None:
    """New tensors go to a shard of their own; others stay the files that they were; the index follows."""
    table = tied_state()[EMBED]
    source = sharded(tmp_path / "tied", [{EMBED: table}, {NORM: torch.ones(4)}])
    tieconv.plan_untie(source).execute(tmp_path / "untied")
    index = json.loads((tmp_path / "untied" / "pytorch_model.bin.index.json").read_text())
    assert index["weight_map"][HEAD] == "pytorch_model-head.bin"
    assert index["metadata"]["total_size"] == 2 * table.nbytes + 16
    assert torch.equal(load(tmp_path / "untied" / "pytorch_model-head.bin")[HEAD], table)
    for shard in ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"):
        assert (tmp_path / "untied" / shard).read_bytes() == (source / shard).read_bytes()
    tieconv.plan_retie(tmp_path / "untied").execute(tmp_path / "back")
    names = {path.name for path in source.iterdir()}
    assert {path.name for path in (tmp_path / "back").iterdir()} == names
    for name in names - {"config.json"}:
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_sharded_alias_is_separated_in_its_shard(tmp_path: Path) -> None:
    """The total counts one storage once, and grows by what is added."""
    source = sharded(tmp_path / "tied", [tied_state(), {"model.x.weight": torch.ones(4)}])
    tieconv.plan_untie(source).execute(tmp_path / "out")
    index = json.loads((tmp_path / "out" / "pytorch_model.bin.index.json").read_text())
    old = json.loads((source / "pytorch_model.bin.index.json").read_text())
    assert index["weight_map"] == old["weight_map"]
    assert index["metadata"]["total_size"] == old["metadata"]["total_size"] + 128
    assert [finding.rule for finding in tieconv.inspect(tmp_path / "out").findings] == ["TIE004"]


def test_in_place_and_lone_file(tmp_path: Path) -> None:
    """A lone file is written alone, under a name of its kind."""
    path = save(tmp_path / "model.pth", tied_state())
    planned = tieconv.plan_untie(path, embed=EMBED, head=HEAD)
    with pytest.raises(DestinationError, match=r"does not end in \.pth"):
        planned.execute(tmp_path / "out.safetensors")
    planned.execute(tmp_path / "out.pt")
    assert torch.equal(load(tmp_path / "out.pt")[HEAD], tied_state()[HEAD])
    folder = llama(tmp_path / "model", tied_state())
    tieconv.plan_untie(folder).execute(in_place=True)
    assert not shares(*(load(folder / "pytorch_model.bin")[name] for name in (EMBED, HEAD)))


@pytest.mark.parametrize(
    ("wrapped", "code"),
    [
        (lambda state: {"model": state, "epoch": 3}, "torch.training"),
        (lambda state: {**state, "version": "1"}, "torch.extra"),
    ],
    ids=["training", "extra"],
)
def test_what_would_be_lost_is_refused(wrapped: Any, code: str, tmp_path: Path) -> None:
    """A training checkpoint is not written: one sentence, and how to extract the model first."""
    source = llama(tmp_path / "model", wrapped(tied_state()))
    for plan in (tieconv.plan_untie, tieconv.plan_retie):
        with pytest.raises(RefusedError) as refusal:
            plan(source)
        assert refusal.value.code == code
        assert refusal.value.hint


@pytest.mark.parametrize("verify", ["full", "structure"])
def test_a_wrong_checksum_of_the_source_is_found(verify: Any, tmp_path: Path) -> None:
    """Full verification reads every kept byte against the checksum that goes with it, and blames the source."""
    up = "model.layers.0.mlp.up_proj.weight"
    source = llama(tmp_path / "model", {**tied_state(), up: torch.ones(6, 4)})
    path = source / "pytorch_model.bin"
    at = read(path).tensors[up].range.start
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    planned = tieconv.plan_untie(source)
    if verify == "structure":
        planned.execute(tmp_path / "out", verify=verify)
        return
    with pytest.raises(UnreadableError) as refusal:
        planned.execute(tmp_path / "out", verify=verify)
    assert refusal.value.code == "torch.checksum"
    assert up in refusal.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_wrong_checksum_of_a_norm_is_found_before_a_plan(tmp_path: Path) -> None:
    """An inspection reads norms, because it looks for a NaN in them."""
    path = llama(tmp_path / "model", tied_state()) / "pytorch_model.bin"
    data = bytearray(path.read_bytes())
    data[read(path).tensors[NORM].range.start] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=f"the bytes of tensor {NORM} do not match their checksum"):
        tieconv.inspect(path.parent)


@pytest.mark.parametrize("position", ["pickle", "tensor", "directory"])
def test_damage_before_the_proof_is_found(position: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back is compared, whatever part of the file it is."""
    from tieconv.execute.verify import Verifier

    source = llama(tmp_path / "model", tied_state())
    planned = tieconv.plan_untie(source)
    proved = Verifier.weights

    def damage(self: Verifier, output: Any, name: str) -> None:
        path = self.new / name
        data = bytearray(path.read_bytes())
        record = read(path).tensors[HEAD]
        at = {"pickle": 120, "tensor": record.range.start, "directory": len(data) - 60}[position]
        data[at] ^= 1
        path.write_bytes(data)
        proved(self, output, name)

    monkeypatch.setattr(Verifier, "weights", damage)
    with pytest.raises(VerificationError):
        planned.execute(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_layout_is_that_of_torch_save(tmp_path: Path) -> None:
    """The same records, aligned to 64 bytes, stored, readable by any zip reader."""
    tieconv.plan_untie(llama(tmp_path / "model", tied_state())).execute(tmp_path / "out")
    path = tmp_path / "out" / "pytorch_model.bin"
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        names = file.namelist()
        for entry in file.infolist():
            assert (entry.flag_bits, entry.compress_type, entry.volume) == (0x800, 0, 0)
            assert (entry.internal_attr, entry.external_attr, entry.date_time) == (0, 0, (1980, 0, 0, 0, 0, 0))
        starts = [_data_start(path, entry.header_offset) for entry in file.infolist()]
    storages = [f"archive/data/{key}" for key in range(3)]
    assert names == ["archive/data.pkl", "archive/byteorder", *storages, "archive/version"]
    assert all(start % 64 == 0 for start in starts)


def _data_start(path: Path, header: int) -> int:
    name, extra = struct.unpack("<HH", path.read_bytes()[header + 26 : header + 30])
    return header + 30 + name + extra


def test_output_is_deterministic(tmp_path: Path) -> None:
    """The same plan gives the same bytes."""
    source = llama(tmp_path / "model", tied_state())
    for name in ("one", "two"):
        tieconv.plan_untie(source).execute(tmp_path / name)
    files = [(tmp_path / name / "pytorch_model.bin").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_slack_and_overlap_stay_as_they_are(tmp_path: Path) -> None:
    """What was not asked to change stays: a slice keeps its storage, whole."""
    large = torch.randn(1000, 4)
    state = {**tied_state(), "a": large[:8], "b": large[4:12].T}
    tieconv.plan_untie(llama(tmp_path / "model", state)).execute(tmp_path / "out")
    after = load(tmp_path / "out" / "pytorch_model.bin")
    assert shares(after["a"], after["b"])
    assert after["a"].untyped_storage().nbytes() == large.nbytes
    assert after["b"].stride() == state["b"].stride()
    assert torch.equal(after["b"], state["b"])


@pytest.mark.parametrize("sizes", [[5 << 30, 100], [100, (1 << 32) - 1, 64], [0, 0, 3 << 30, 3 << 30, 8]], ids=str)
def test_large_archives_are_zip64(sizes: list[int]) -> None:
    """Sizes and offsets beyond 32 bits, in the layout alone: nothing of that size is written."""
    archive = lay_out(b"\x80\x02}.", [Placed("", size, crc=number) for number, size in enumerate(sizes)])
    entries = read_archive(_sparse(archive), archive.size)
    assert [entries[f"data/{key}"].size for key in range(len(sizes))] == sizes
    assert [entries[f"data/{key}"].crc for key in range(len(sizes))] == list(range(len(sizes)))
    assert all(entry.start % 64 == 0 for entry in entries.values())


def test_many_entries_are_zip64() -> None:
    """More than 65,535 of them."""
    archive = lay_out(b"\x80\x02}.", [Placed("", 0, crc=0)] * 70_000)
    assert len(read_archive(_sparse(archive), archive.size)) == 70_003


def test_the_end_of_an_archive() -> None:
    """The fields that the format's specification states (4.3.14 to 4.3.16), at the first numbers that need zip64."""
    most16, most32 = 0xFFFF, 0xFFFFFFFF
    plain = (most16 - 1, most32 - 1, most32 - 1)
    assert struct.unpack("<4sHHHHIIH", _end(*plain)) == (b"PK\5\6", 0, 0, plain[0], *plain, 0)
    for count, length, start in ((most16, 1, 2), (1, most32, 2), (1, 2, most32)):
        end = _end(count, length, start)
        wide = (b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start)
        assert struct.unpack("<4sQHHIIQQQQ", end[:56]) == wide
        assert struct.unpack("<4sIQI", end[56:76]) == (b"PK\6\7", 0, start + length, 1)
        assert struct.unpack("<4sHHHHIIH", end[76:]) == (b"PK\5\6", 0, 0, count, count, length, start, 0)


def _sparse(archive: Archive) -> Any:
    literals = sorted(archive.literals(lambda record: 0))
    starts = [offset for offset, _ in literals]

    def pread(size: int, offset: int) -> bytes:
        from bisect import bisect_right

        out = bytearray(min(size, archive.size - offset))
        first = max(bisect_right(starts, offset) - 1, 0)
        for start, data in literals[first:]:
            if start >= offset + len(out):
                break
            low, high = max(start, offset), min(start + len(data), offset + len(out))
            if low < high:
                out[low - offset : high - offset] = data[low - start : high - start]
        return bytes(out)

    return pread


def test_padding_lets_blocks_be_shared() -> None:
    """A large record lies in its page where the source has it."""
    archive = lay_out(b"N.", [Placed("", 2 << 20, crc=0, congruent=64 * 77), Placed("", 128, crc=0, congruent=64 * 5)])
    large, small = archive.storages
    assert large.start % 4096 == 64 * 77 % 4096
    assert small.start % 64 == 0
    assert archive.size < (2 << 20) + 8192


def test_a_name_of_safetensors_alone_is_refused(tmp_path: Path) -> None:
    """No torch dtype: one sentence."""
    edits = Edits(read(save(tmp_path / "model.pt", tied_state())))
    edits.fill("six", "F6_E2M3", (4,), EMBED)
    with pytest.raises(TieconvError, match="F6_E2M3"):
        run(edits, tmp_path / "out.pt")


@pytest.mark.parametrize(("tensors", "batches"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_items_are_written_in_batches(tensors: int, batches: int) -> None:
    """As Python's pickler does: all items at once would be too many for the stack of a reader."""
    state = (SavedTensor(f"t{i}", "F32", i, 4, 0, (1,), (1,)) for i in range(tensors))
    operators = [operator.name for operator, _, _ in pickletools.genops(io.BytesIO(pickle_state(state, None)))]
    assert operators.count("SETITEMS") == batches
    assert operators.count("BINPERSID") == tensors
