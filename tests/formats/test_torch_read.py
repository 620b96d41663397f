"""What `torch.save` writes is read as torch reads it: names, dtypes, shapes, strides, sharing and bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tieconv
from tests.patience import examples, prompt
from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.sources.local import locate, open_files
from tieconv.sources.strided import StridedRange, dense, gather

DTYPES = {
    torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL",
    torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.complex128: "C128", torch.complex32: "C32", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip
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
        dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
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
        assert (record.dtype, record.shape) == (DTYPES[tensor.dtype], tuple(tensor.shape))
        assert (record.stride is None) == (tensor.is_contiguous() or not tensor.numel())
        assert record.stride in (None, tuple(tensor.stride()))
        if tensor.numel():
            assert stored_bytes(path, record) == tensor_bytes(tensor)
        for twin_name, twin in loaded.items():
            shared = tensor.untyped_storage().data_ptr() == twin.untyped_storage().data_ptr()
            if tensor.untyped_storage().nbytes() and twin.untyped_storage().nbytes():
                assert (record.storage == records[twin_name].storage) == shared


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@CONTAINERS
def test_every_dtype_has_the_name_of_safetensors(dtype: torch.dtype, zipped: bool, tmp_path: Path) -> None:
    """A tensor of each dtype, its bytes untouched."""
    tensor = torch.arange(48, dtype=torch.uint8).view(dtype).reshape(3, -1)
    path = save(tmp_path / "model.bin", {"w": tensor}, zipped=zipped)
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
    assert (caution.code, caution.message) == (
        "torch.extra",
        "tieconv ignores 3 values that are not tensors: version, extra, 3",
    )


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
    with pytest.raises(UnreadableError) as refusal:
        tieconv.inspect(path, depth="full")
    assert refusal.value.code == "torch.checksum"


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
