"""What `torch.save` writes is read as torch reads it, and what an inspection says about shared storages."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tieconv
from tests.lazy import torch
from tests.loops import case, fresh
from tests.patience import examples, prompt
from tests.refusals import failure_of
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.inspection.equality import relate
from tieconv.inspection.storage import view_storages
from tieconv.reporters.text.inspect_text import render
from tieconv.sources.local import locate, open_files
from tieconv.sources.strided import StridedRange, dense, gather

DTYPES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint16": "U16", "uint32": "U32", "uint64": "U64", "complex64": "C64",
    "complex128": "C128", "complex32": "C32", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def code(dtype: torch.dtype) -> str:
    """What safetensors calls a dtype."""
    return DTYPES[str(dtype).removeprefix("torch.")]


CONTAINERS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(path: Path, value: Any, *, zipped: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def read(path: Path) -> Checkpoint:
    listing = locate(str(path))
    with open_files(Path(listing.root)) as files:
        return read_checkpoint(listing, files)


def stored_bytes(path: Path, record: TensorRecord) -> bytes:
    """The record's elements in row-major order, from the file."""
    data = path.read_bytes()
    span = dense(record).range
    if not isinstance(span, StridedRange):
        return data[span.start : span.end]

    def read_at(position: int, buffer: memoryview) -> None:
        buffer[:] = data[position : position + len(buffer)]

    return bytes(gather(read_at, span, 0, span.end))


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.shape, dtype=tensor.dtype)
    flat.copy_(tensor)
    return flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@st.composite
def state_dicts(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Tensors of any dtype that are aliases, transposes, slices, reshapes and expansions of a few storages."""
    bases = []
    for number in range(draw(st.integers(1, 3))):
        dtype = getattr(torch, draw(st.sampled_from(sorted(DTYPES))))
        shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=3)))
        raw = np.random.default_rng(number).integers(0, 2, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
        bases.append(torch.from_numpy(raw).view(dtype).reshape(shape))
    state = {}
    for number in range(draw(st.integers(1, 8))):
        tensor = draw(st.sampled_from(bases))
        for _ in range(draw(st.integers(0, 3))):
            tensor = _changed(draw, tensor)
        state[f"layer.{number}"] = tensor
    return state


def _changed(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    kind = draw(st.sampled_from(["transpose", "slice", "select", "expand", "flatten", "empty", "step"]))
    if kind == "expand" and tensor.dim() < 4:
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if not tensor.dim():
        return tensor
    axis = draw(st.integers(0, tensor.dim() - 1))
    start = draw(st.integers(0, tensor.shape[axis]))
    changes = {
        "transpose": lambda: tensor.transpose(axis, draw(st.integers(0, tensor.dim() - 1))),
        "select": lambda: tensor.select(axis, start) if start < tensor.shape[axis] else tensor,
        "flatten": lambda: tensor.view(-1) if tensor.is_contiguous() else tensor,
        "empty": lambda: tensor.narrow(axis, 0, 0),
        "step": lambda: tensor[(slice(None),) * axis + (slice(None, None, 2),)],
    }
    if kind in changes:
        return changes[kind]()
    return tensor.narrow(axis, start, draw(st.integers(0, tensor.shape[axis] - start)))


@settings(max_examples=examples(150), deadline=None)
@given(state=state_dicts(), zipped=st.booleans())
def test_any_state_dict_is_read_as_torch_reads_it(
    state: dict[str, torch.Tensor], zipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Names in order, dtype, shape, bytes; and two names share a storage exactly where torch says so."""
    # torch 2.13 itself cannot load these from the legacy container.
    zipped = zipped or any(tensor.dtype in torch.storage._new_dtypes() for tensor in state.values())
    path = save(tmp_path_factory.mktemp("torch") / "model.pt", state, zipped=zipped)
    records = read(path).tensors
    loaded = torch.load(path, weights_only=True)
    assert list(records) == list(loaded)
    for name, tensor in loaded.items():
        record = records[name]
        assert (record.dtype, record.shape) == (code(tensor.dtype), tuple(tensor.shape))
        assert (record.stride is None) == (tensor.is_contiguous() or not tensor.numel())
        assert record.stride in (None, tuple(tensor.stride()))
        if tensor.numel():
            assert stored_bytes(path, record) == tensor_bytes(tensor)
        for twin_name, twin in loaded.items():
            shared = tensor.untyped_storage().data_ptr() == twin.untyped_storage().data_ptr()
            if tensor.untyped_storage().nbytes() and twin.untyped_storage().nbytes():
                assert (record.storage == records[twin_name].storage) == shared


@CONTAINERS
def test_every_dtype_has_the_name_of_safetensors(zipped: bool, tmp_path: Path) -> None:
    """A tensor of each dtype, its bytes untouched."""
    for dtype in DTYPES:
        with case(dtype):
            folder = fresh(tmp_path)
            tensor = torch.arange(48, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(3, -1)
            path = save(folder / "model.bin", {"w": tensor}, zipped=zipped)
            record = read(path).tensors["w"]
            assert record.dtype == DTYPES[dtype]
            assert stored_bytes(path, record) == bytes(range(48))


def test_torch_metadata_is_kept(tmp_path: Path) -> None:
    """The versions that `state_dict()` attaches are part of the file's metadata."""
    path = save(tmp_path / "model.bin", torch.nn.BatchNorm1d(3).state_dict())
    (file,) = read(path).files
    assert file.metadata == {"_metadata": '{"":{"version":2}}'}


def test_parameters_are_tensors(tmp_path: Path) -> None:
    """Parameters, also with attributes of their own, and tensors with attributes."""
    plain, marked = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    marked.tensor_model_parallel = True  # type: ignore[attr-defined]
    attributed = torch.ones(3)
    attributed.mark = 1  # type: ignore[attr-defined]
    path = save(tmp_path / "model.bin", {"plain": plain, "marked": marked, "attributed": attributed})
    assert list(read(path).tensors) == ["plain", "marked", "attributed"]


def _training() -> dict[str, Any]:
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": {k: v for k, v in scheduler.state_dict().items() if isinstance(v, (int, float))},
        "loss": np.float64(0.5),
        "rng": np.random.default_rng(0).integers(0, 9, 4),
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "tags": {"a", "b"},
    }


@CONTAINERS
def test_training_checkpoint_gives_the_model(zipped: bool, tmp_path: Path) -> None:
    """The model's part is found among optimizer states and scalars, and the caution says what was left."""
    path = save(tmp_path / "step.pt", _training(), zipped=zipped)
    checkpoint = read(path)
    assert list(checkpoint.tensors) == ["weight", "bias"]
    (caution,) = [caution for caution in checkpoint.cautions if caution.code == "torch.training"]
    assert "under model" in caution.message
    assert "optimizer" in caution.message


@pytest.mark.parametrize(
    ("key", "value"), [("state_dict", 2), ("module", 2), ("weights", 2), ("model_state_dict", 2)], ids=str
)
def test_state_dict_is_found_under_any_key(key: str, value: int, tmp_path: Path) -> None:
    """A usual name counts, and where there is none the dictionary with most tensors."""
    state = {f"layer.{i}": torch.ones(2) for i in range(value)}
    path = save(tmp_path / "step.pt", {"epoch": 1, "other": {"x": torch.ones(1)}, key: state})
    assert list(read(path).tensors) == list(state)


def test_a_tensor_beside_the_model_is_not_the_model(tmp_path: Path) -> None:
    """A random state at the top of a training checkpoint; and a small dictionary within a state dict."""
    weights = {"a": torch.ones(2), "b": torch.ones(2)}
    path = save(tmp_path / "step.pt", {"rng_state": torch.get_rng_state(), "module": weights})
    assert list(read(path).tensors) == ["a", "b"]
    path = save(tmp_path / "model.pt", {**weights, "model": {"c": torch.ones(1)}})
    assert list(read(path).tensors) == ["a", "b"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_wrapper_prefix_is_named(prefix: str, tmp_path: Path) -> None:
    """Names stay as they are in the file; the caution says what was put before them."""
    path = save(tmp_path / "step.pt", {f"{prefix}lm_head.weight": torch.ones(2, 2)})
    checkpoint = read(path)
    assert list(checkpoint.tensors) == [f"{prefix}lm_head.weight"]
    assert [caution.code for caution in checkpoint.cautions] == ["torch.prefix"]
    assert prefix in checkpoint.cautions[0].message


def test_values_beside_tensors_are_named(tmp_path: Path) -> None:
    """Nothing is left out in silence."""
    path = save(tmp_path / "model.pt", {"w": torch.ones(2), "version": "1", "extra": None, 3: torch.ones(1)})
    (caution,) = read(path).cautions
    assert caution.code == "torch.extra"
    assert caution.message == "tieconv ignores 3 values that are not tensors: version, extra, 3"


def test_whole_module_is_refused_by_its_class(tmp_path: Path) -> None:
    """A pickled module would have to import its class."""
    path = save(tmp_path / "model.pt", torch.nn.Linear(2, 2))
    with pytest.raises(UnreadableError, match=r"asks to import torch\.nn\.modules\.linear\.Linear") as refusal:
        read(path)
    assert "state_dict" in refusal.value.hint


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["sparse", "quantised", "conjugated", "script"])
def test_what_is_no_plain_tensor_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    """Sparse, quantised and lazily conjugated tensors, and programs."""
    path = tmp_path / "model.pt"
    expected = {"sparse": "sparse", "quantised": "storage of the class torch.QInt8Storage", "script": "TorchScript"}
    if kind == "script":
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    else:
        make = {
            "sparse": lambda: torch.eye(3).to_sparse(),
            "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "conjugated": lambda: torch.ones(2, dtype=torch.complex64).conj(),
        }[kind]
        save(path, {"w": make()})
    with pytest.raises(UnreadableError, match=expected.get(kind, kind)):
        read(path)


def test_sharded_directory_and_companions(tmp_path: Path) -> None:
    """Shards by their index; what a trainer leaves beside them is no weight file."""
    places = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    for name, shard in places.items():
        save(tmp_path / shard, {name: torch.ones(2)})
    index = {"metadata": {"total_size": 16}, "weight_map": places}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (tmp_path / name).write_bytes(b"not read")
    checkpoint = read(tmp_path)
    assert (checkpoint.format, str(checkpoint.layout)) == ("torch", "sharded")
    assert list(checkpoint.tensors) == ["a", "b"]
    assert not checkpoint.cautions
    assert set(checkpoint.companions) == {"training_args.bin", "optimizer.pt", "rng_state_0.pth"}


def test_damaged_bytes_are_found_on_demand(tmp_path: Path) -> None:
    """`--depth full` holds every storage against its checksum."""
    path = save(tmp_path / "model.bin", {"w": torch.arange(1000.0)})
    (record,) = read(path).tensors.values()
    data = bytearray(path.read_bytes())
    data[record.range.start + 100] ^= 1
    path.write_bytes(data)
    tieconv.inspect(path)
    assert failure_of(tieconv.inspect, UnreadableError, path, depth="full").code == "torch.checksum"


def test_inspecting_imports_no_framework(tmp_path: Path) -> None:
    """Neither torch nor numpy nor pickle, for a tied checkpoint."""
    table = torch.randn(8, 4)
    save(tmp_path / "pytorch_model.bin", OrderedDict({"model.embed_tokens.weight": table, "lm_head.weight": table}))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    script = (
        "import sys, tieconv; print(tieconv.inspect(sys.argv[1]).ties[0].members[1].state);"
        "print(sorted({'torch', 'numpy', 'pickle', 'pickletools', 'zipfile'} & sys.modules.keys()))"
    )
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", script, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": root})
    assert run.stdout.split() == ["aliased", "[]"]


@pytest.mark.slow
def test_many_tensors_are_read_in_bounded_time(tmp_path: Path) -> None:
    """20,000 tensors take a few seconds at most and no more memory than a few hundred bytes each."""
    path = save(tmp_path / "model.bin", {f"model.layers.{i}.weight": torch.zeros(1) for i in range(20_000)})
    with prompt(5):
        assert len(read(path).tensors) == 20_000


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}


def table(rows: int = 8, columns: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def inspect(folder: Path, state: Any, depth: str = "candidates") -> Inspection:
    folder.mkdir(exist_ok=True)
    save(folder / "pytorch_model.bin", state)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return tieconv.inspect(folder, depth=depth)


def head(inspection: Inspection) -> tuple[State, Any]:
    (tie,) = inspection.ties
    member = next(member for member in tie.members if member.name == HEAD)
    return member.state, member.relation.to_dict()


@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
def test_alias_and_transposed_view_need_no_reading(depth: str, tmp_path: Path) -> None:
    """Where the bytes lie says it all, at any depth; neither wastes a byte."""
    embedding = table()
    alias = inspect(tmp_path / "alias", {EMBED: embedding, HEAD: embedding}, depth)
    assert head(alias) == (State.ALIASED, {})
    turned = inspect(tmp_path / "turned", {EMBED: embedding, HEAD: embedding.T}, depth)
    assert head(turned) == (State.TRANSPOSED, {"view": True})
    for member in (alias, turned):
        assert member.ties[0].bytes_wasted == 0
        assert (member.bytes_stored, member.bytes_unique) == (128, 128)
        assert member.checkpoint.parameters == 32 and "2 tensors, 32 parameters, 128 B" in render(member)
    assert alias.ties[0].consistent is True
    assert turned.ties[0].consistent is False


def test_same_shape_view_is_no_alias(tmp_path: Path) -> None:
    """A square matrix and its transpose have one storage and one shape."""
    embedding = table(6, 6)
    assert head(inspect(tmp_path / "square", {EMBED: embedding, HEAD: embedding.T}))[0] is State.TRANSPOSED
    assert head(inspect(tmp_path / "rows", {EMBED: embedding[:4], HEAD: embedding[2:]}))[0] is State.DISTINCT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t.T.contiguous().T,  # column-major
        lambda t: torch.cat([t, t + 1], 1)[:, : t.shape[1]],  # columns of a wider matrix
        lambda t: t.repeat_interleave(2, 0)[::2],  # every second row
        lambda t: torch.stack([t, t + 1], 2)[:, :, 0],  # every second element
    ],
    ids=["column-major", "columns", "rows", "elements"],
)
def test_a_strided_copy_is_identical(layout: Any, dtype: str, tmp_path: Path) -> None:
    """A view in a storage of its own is read as the matrix that it is, whatever its strides."""
    embedding = table(300, 40).to(getattr(torch, dtype))
    strided_copy = layout(embedding.clone())
    assert torch.equal(strided_copy, embedding)
    assert not strided_copy.is_contiguous()
    assert head(inspect(tmp_path / "equal", {EMBED: embedding, HEAD: strided_copy})) == (State.IDENTICAL, {})
    turned = layout(embedding.clone()).T
    assert head(inspect(tmp_path / "turned", {EMBED: embedding, HEAD: turned}))[0] is State.TRANSPOSED
    changed = layout(embedding.clone())
    changed[299, 39] += 1
    state, detail = head(inspect(tmp_path / "near", {EMBED: embedding, HEAD: changed}))
    assert state is State.NEAR
    assert detail["rows_differing"] == 1
    scaled = layout(embedding * 2)
    assert head(inspect(tmp_path / "scaled", {EMBED: embedding, HEAD: scaled}))[0] is State.SCALED


@settings(max_examples=examples(60), deadline=None)
@given(state=state_dicts(), seed=st.integers(0, 99))
def test_relation_agrees_with_torch(
    state: dict[str, torch.Tensor], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`aliased` exactly for one view of one storage, else `identical` exactly for equal bytes."""
    folder = tmp_path_factory.mktemp("torch")
    path = save(folder / "model.pt", state)
    records = read(path).tensors
    names = list(state)
    pick = random.Random(seed)
    left, right = pick.choice(names), pick.choice(names)
    a, b = (torch.load(path, weights_only=True)[name] for name in (left, right))
    with open_files(folder) as files:
        evidence = relate(files, records[left], records[right])
    same_form = a.dtype == b.dtype and a.shape == b.shape
    bits = same_form and a.contiguous().view(-1).tolist() == b.contiguous().view(-1).tolist()
    if evidence.state is State.ALIASED:
        assert same_form
        assert records[left].storage == records[right].storage
    if evidence.state in (State.ALIASED, State.IDENTICAL):
        assert bits
    elif same_form and evidence.state is not State.TRANSPOSED and code(a.dtype) not in ("F32", "F64", "F16", "BF16"):
        assert not bits or not torch.isfinite(a.to(torch.float32)).all()


def storage_of(folder: Path, state: Any) -> Any:
    return view_storages(read(save(folder / "model.pt", state)))


def test_kinds_of_sharing(tmp_path: Path) -> None:
    """Each pair by what it shares: nothing, the same elements, a transpose, a reshape, a slice, an overlap."""
    base = table(10, 4)
    views = {"aliased": base, "transposed": base.T, "view": base.view(4, 10), "slice": base[2:5]}
    cases = {kind: (base, view) for kind, view in views.items()} | {"overlap": (base[:6], base[4:])}
    for kind, (left, right) in cases.items():
        (overlap,) = storage_of(tmp_path, {"a": left, "b": right}).overlaps
        assert (overlap.kind, set(overlap.tensors)) == (kind, {"a", "b"})
    for left, right in ((base[:5], base[5:]), (base[:, :2], base[:, 2:]), (base[::2], base[1::2]), (base[:0], base)):
        assert storage_of(tmp_path, {"a": left, "b": right}).overlaps == ()


def test_nested_overlaps_are_one_group(tmp_path: Path) -> None:
    """A short tensor within a long one does not hide that the long one reaches into the next."""
    base = torch.arange(100.0)
    use = storage_of(tmp_path, {"long": base[:60], "short": base[10:20], "late": base[50:90], "apart": base[90:]})
    (overlap,) = use.overlaps
    assert set(overlap.tensors) == {"long", "short", "late"}
    assert overlap.kind == "overlap"
    assert use.slack == ()


def test_small_view_of_a_large_storage_is_slack(tmp_path: Path) -> None:
    """160 bytes that drag 3.2 MB along."""
    large = torch.zeros(800_000)
    evidence = inspect(tmp_path / "model", {EMBED: table(), "model.norm.weight": large[100:140]})
    assert evidence.storage is not None
    assert evidence.storage.unused == 3_200_000 - 160
    assert evidence.bytes_stored == 3_200_000 + 128
    assert evidence.bytes_unique == 160 + 128
    assert "STO003" in [finding.rule for finding in evidence.findings]
    assert "3.2 MB used by no tensor" in render(evidence)
    document = evidence.to_dict()["storage"]
    assert isinstance(document, dict)
    assert document["bytes_unused"] == 3_200_000 - 160


def test_column_of_a_matrix_leaves_slack_between_its_elements(tmp_path: Path) -> None:
    """The span of a strided view is not what it uses; an expanded one uses what it repeats."""
    use = storage_of(tmp_path, {"column": table(100, 50)[:, 0]})
    assert use.unused == 100 * 50 * 4 - 400
    use = storage_of(tmp_path, {"expanded": torch.ones(4).expand(1000, 4)})
    assert use.unused == 0


def test_duplicates_count_no_shared_byte(tmp_path: Path) -> None:
    """Aliases outside the tied groups are listed and waste nothing; a transposed view neither."""
    second_table = table(8, 4, seed=5)
    state = {EMBED: table(), "a.weight": second_table, "b.weight": second_table, "c.weight": second_table.T}
    evidence = inspect(tmp_path / "model", state, "full")
    wanted = (State.ALIASED, ("a.weight", "b.weight"), 0), (State.TRANSPOSED, ("a.weight", "c.weight"), 0)
    assert [(entry.kind, entry.tensors, entry.bytes_wasted) for entry in evidence.duplicates] == [*wanted]
    assert evidence.bytes_unique == evidence.bytes_stored


def test_reading_a_view_is_bounded(tmp_path: Path) -> None:
    """No read asks for more than a few megabytes at a time."""
    embedding = table(4096, 1024)
    path = save(tmp_path / "model.pt", {EMBED: embedding, HEAD: embedding.T.contiguous().T})
    records = read(path).tensors
    asked = []

    class Reader:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
            asked.append(len(buffer))
            self.inner.read_into(span, offset, buffer)

    with open_files(tmp_path) as files:
        assert relate(Reader(files), records[EMBED], records[HEAD]).state is State.IDENTICAL
    assert max(asked) <= 8 * 1024 * 1024
    assert sum(asked) < 20 * embedding.nbytes


def test_settings_of_other_trainers_are_dropped(tmp_path: Path) -> None:
    """fairseq and OpenNMT store an `argparse.Namespace`: tieconv drops it, and torch's safe loader refuses it."""
    options = argparse.Namespace(arch="transformer", inner=argparse.Namespace(dropout=[0.1]))
    decoder = {"decoder.embed_tokens.weight": table(), "decoder.output_projection.weight": table()}
    save(tmp_path / "fairseq.pt", {"args": options, "model": decoder, "extra_state": {"epoch": 1}})
    evidence = tieconv.inspect(tmp_path / "fairseq.pt")
    assert evidence.family.convention == "fairseq"
    assert evidence.ties[0].members[1].state is State.IDENTICAL
    assert [entry.rule for entry in evidence.findings] == ["FMT001", "STO005", "TIE012"]
    assert "argparse.Namespace" in evidence.findings[0].message


def test_a_copy_of_averages_is_a_second_model(tmp_path: Path) -> None:
    """EMA weights lie beside the model under three names, in two forms: the report says whose tie it gives."""
    model = {EMBED: table(), HEAD: table()}
    for number, state, second in (
        (1, model | {f"ema.{name}": tensor + 1 for name, tensor in model.items()}, "ema (2 tensors)"),
        (2, model | {"model_ema.modelembed_tokensweight": table() + 1}, "model_ema (1 tensor)"),
        (3, {"model": model, "ema_model": {name: tensor + 1 for name, tensor in model.items()}}, "ema_model"),
    ):
        findings = inspect(tmp_path / str(number), state).findings
        message = " ".join(entry.message for entry in findings if entry.rule == "STO005")
        assert f"The file holds two models: {second} is an average of weights (EMA)" in message, (number, findings)
        assert number == 3 or "The tie is that of the other tensors." in message, number
    only = inspect(tmp_path / "only", {f"ema.{name}": tensor for name, tensor in model.items()})
    assert not any("two models" in entry.message for entry in only.findings)


def test_names_of_two_more_conventions(tmp_path: Path) -> None:
    """`tok_embedding` with `fc_out`, and Gemma's own `embedder`, are an embedding and a head."""
    save(tmp_path / "a.pt", {"tok_embedding.weight": table(), "fc_out.weight": table(), "norm.weight": table(4, 4)})
    (tie,) = tieconv.inspect(tmp_path / "a.pt").ties
    states = {member.name: member.state for member in tie.members}
    assert states == {"tok_embedding.weight": State.CANONICAL, "fc_out.weight": State.IDENTICAL}
    save(tmp_path / "b.pt", {"embedder.weight": table(), "layers.0.weight": table(4, 4)})
    embedding = tieconv.inspect(tmp_path / "b.pt").head.input_embedding
    assert embedding is not None and embedding.name == "embedder.weight"
