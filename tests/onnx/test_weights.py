"""Weight identity: found means bit for bit over all elements, after torch's own cast, and nothing less."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.onnx.graphs import identity, write_graph
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.onnx.parity.weight_identity import folds

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture
def matrix() -> torch.Tensor:
    return torch.randn(70, 50, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("external", [False, True])
def test_forms(tmp_path: Path, matrix: torch.Tensor, external: bool) -> None:
    """As it is, transposed, and with another number of axes of length 1, whatever the names are."""
    tensors = {"embed": matrix, "b": matrix + 1, "norm": matrix[0].clone()}
    weights = {"val_1": matrix.clone(), "val_2": (matrix + 1).T, "val_3": matrix[0].clone()[None, None]}
    found = identity(tmp_path, tensors, weights, external=external)
    assert (found.found, found.tensors, found.copies) == (3, 3, 1)
    assert found.how == {"straight": 2, "transposed": 1}
    assert found.bytes_found == found.bytes
    assert found.proved


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("precision", DTYPES)
def test_the_cast_is_torchs(tmp_path: Path, matrix: torch.Tensor, stored: str, precision: str) -> None:
    """A checkpoint in any float type is found in a graph in any other, both ways round, at 16-bit ties too."""
    tensor = matrix.to(DTYPES[stored])
    tensor[0, :6] = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 2**-25, 1e30])
    weights = {"w": tensor.to(DTYPES[precision]).T}
    assert identity(tmp_path, {"embed": tensor}, weights, precision).found == 1


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(place=st.integers(0, 70 * 50 - 1), bit=st.integers(0, 31), transposed=st.booleans())
def test_one_bit_is_seen(tmp_path: Path, matrix: torch.Tensor, place: int, bit: int, transposed: bool) -> None:
    """Wherever a single bit differs, the tensor is lost and the graph's matrix is unexplained."""
    changed = matrix.clone()
    bits = changed.view(torch.int32).view(-1)
    bits[place] ^= (1 << bit) if bit < 31 else -(1 << 31)
    found = identity(tmp_path, {"embed": matrix}, {"w": changed.T if transposed else changed})
    assert found.found == 0
    assert [entry.name for entry in found.lost] == ["embed"]
    assert [(entry.name, entry.required) for entry in found.unexplained] == [("w", True)]
    assert not found.proved


def test_a_corrupted_copy_beside_a_whole_one(tmp_path: Path, matrix: torch.Tensor) -> None:
    """The tensor is found, and yet the copy that is read elsewhere fails the verdict."""
    changed = matrix.clone()
    changed[3] = 0
    found = identity(tmp_path, {"embed": matrix}, {"head": matrix.T, "embed": changed})
    assert found.found == 1
    assert [entry.name for entry in found.unexplained] == ["embed"]
    assert not found.proved


def test_nan_counts_by_its_bits(tmp_path: Path, matrix: torch.Tensor) -> None:
    """The same NaN is equal to itself, and +0 is not −0."""
    matrix[1, 1] = float("nan")
    matrix[1, 2] = 0.0
    assert identity(tmp_path, {"embed": matrix}, {"w": matrix.clone()}).found == 1
    negative = matrix.clone()
    negative[1, 2] = -0.0
    assert identity(tmp_path, {"embed": matrix}, {"w": negative}).found == 0


def test_folds_are_proved(tmp_path: Path, matrix: torch.Tensor) -> None:
    """Gemma's 1 + w and a scale of the config are found bit for bit; another scale is not."""
    config = SimpleNamespace(hidden_size=50, num_attention_heads=2, head_dim=16, query_pre_attn_scalar=9)
    norm = matrix[0].clone()
    tensors = {"norm": norm, "embed": matrix}
    known = tuple(folds(config))
    plus = {"n": norm.float() + 1.0}
    assert identity(tmp_path, tensors, plus | {"w": matrix * 50**0.5}, folds=known).how == {
        "straight, one plus": 1,
        "straight, times 7.07107": 1,
    }
    assert identity(tmp_path, tensors, plus | {"w": matrix * 7.0}, folds=known).found == 1


def test_a_rounded_weight_stored_wider(tmp_path: Path, matrix: torch.Tensor) -> None:
    """An fp16 graph may keep a weight as float32: rounded or not, each in one way only."""
    weights = {"w": matrix.half().float()}
    assert identity(tmp_path, {"embed": matrix}, weights, "float16").how == {"straight, rounded": 1}
    assert identity(tmp_path, {"embed": matrix}, {"w": matrix}, "float16").how == {"straight": 1}
    assert identity(tmp_path, {"embed": matrix}, weights, "float32").found == 0


def test_what_must_be_found(tmp_path: Path, matrix: torch.Tensor) -> None:
    """Every matrix and long vector that is lost fails the verdict; a short one is listed and left to the logits."""
    tensors = {"embed": matrix, "long": torch.ones(4096), "short": torch.ones(60)}
    found = identity(tmp_path, tensors, {"w": matrix.clone(), "cos": torch.ones(9, 4)})
    assert {entry.name: entry.required for entry in found.lost} == {"long": True, "short": False}
    assert [(entry.name, entry.required) for entry in found.unexplained] == [("cos", False)]
    assert not found.proved


def test_what_the_class_computes_explains(tmp_path: Path, matrix: torch.Tensor) -> None:
    """Sinusoidal positions in the shape of a tensor are no damaged copy of it; one bit off, they are unexplained."""
    table = matrix.sin()
    weights = {"w": matrix.clone(), "positions": table.T.clone()}
    assert identity(tmp_path, {"embed": matrix}, weights, computed=(table,)).proved
    table[69, 49] += 1
    assert not identity(tmp_path, {"embed": matrix}, weights, computed=(table.clone(),)).proved


def test_many_of_one_shape(tmp_path: Path) -> None:
    """Tensors that agree in every sampled element are told apart by the others."""
    base = torch.zeros(64, 64)
    tensors = {f"t{i}": base.clone() for i in range(5)}
    for i, tensor in enumerate(tensors.values()):
        tensor[1, 1 + i] = 1.0
    held = dict(list(tensors.items())[:4])
    found = identity(tmp_path, tensors, {name: tensor.T for name, tensor in held.items()})
    assert [entry.name for entry in found.lost] == ["t4"]


def test_data_outside_the_directory_is_refused(tmp_path: Path, matrix: torch.Tensor) -> None:
    """A graph cannot make tieconv read a file elsewhere, nor past the end of its data."""
    path = write_graph(tmp_path / "g.onnx", {"w": matrix}, external=True)
    (tmp_path / "sub").mkdir()
    model = onnx.load(path, load_external_data=False)
    place = next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location")
    for location in ("../g.onnx.data", str(tmp_path / "g.onnx.data")):
        place.value = location
        (tmp_path / "sub" / "g.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(UnsafePathError, match="outside"):
            read_graph(str(tmp_path / "sub" / "g.onnx"))
    with (tmp_path / "g.onnx.data").open("r+b") as data:
        data.truncate(100)
    with pytest.raises(UnreadableError, match=r"tensor w needs 14,000 bytes at offset 0 .* which has 100"):
        read_graph(str(path))


@pytest.mark.parametrize("transposed", [False, True])
def test_stacked_experts(tmp_path: Path, transposed: bool) -> None:
    """Each expert's matrices are found in a stack, gate above up, and one bit in one of them is seen."""
    generator = torch.Generator().manual_seed(0)
    gates, ups = (torch.randn(3, 20, 16, generator=generator) for _ in range(2))
    stack = torch.cat([gates, ups], 1)
    stack = stack.transpose(1, 2).contiguous() if transposed else stack
    tensors = {f"{name}.{e}": part[e] for name, part in (("gate", gates), ("up", ups)) for e in range(3)}
    found = identity(tmp_path, tensors, {"stack": stack})
    assert found.found == 6
    assert found.how == {f"{'transposed' if transposed else 'straight'}, of a stack": 6}
    assert found.proved
    stack.view(-1).view(torch.int32)[-1] ^= 1
    damaged = identity(tmp_path, tensors, {"stack": stack})
    assert [entry.name for entry in damaged.lost] == ["up.2"]
    assert not damaged.proved


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_split_and_packed(tmp_path: Path, axis: int, transposed: bool) -> None:
    """A projection in three matrices, three in one: found over every element, along either axis; one bit off is not."""
    torch.manual_seed(0)
    parts = {name: torch.randn(24, 24) for name in "qkv"}
    whole = torch.cat(list(parts.values()), axis)

    def turned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.T.contiguous() if transposed else tensor.clone() for name, tensor in tensors.items()}

    split = identity(tmp_path, {"qkv": whole}, turned(parts))
    assert (split.how, split.lost, split.unexplained) == ({"split": 1}, (), ())
    packed = identity(tmp_path, parts, turned({"qkv": whole}))
    assert (packed.how, packed.lost, packed.unexplained) == ({"packed": 3}, (), ())
    for tensors, weights in (({"qkv": whole}, turned(parts)), (parts, turned({"qkv": whole}))):
        list(weights.values())[-1].view(-1).view(torch.int32)[-1] ^= 1
        damaged = identity(tmp_path, tensors, weights)
        assert not damaged.proved and [entry.required for entry in damaged.lost] == [True]


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    """Two thirds of a projection are not the projection; a matrix with something else in it explains the rest not."""
    torch.manual_seed(0)
    parts = {name: torch.randn(24, 24) for name in "qkv"}
    whole = torch.cat(list(parts.values()))
    assert not identity(tmp_path, {"qkv": whole}, {name: parts[name] for name in "qv"}).proved
    more = torch.cat([parts["q"], torch.randn(24, 24), parts["v"]])
    found = identity(tmp_path, {"q": parts["q"], "v": parts["v"]}, {"w": more})
    assert found.how == {"packed": 2}
    assert [entry.name for entry in found.unexplained] == ["w"]


def test_split_vectors(tmp_path: Path) -> None:
    """A long vector in pieces, also where one piece stands for several: zero biases are merged by exporters."""
    long = torch.cat([torch.zeros(2048), torch.arange(2048.0), torch.zeros(2048)])
    found = identity(tmp_path, {"bias": long}, {"a": torch.zeros(2048), "b": torch.arange(2048.0)})
    assert (found.how, found.lost) == ({"split": 1}, ())


def test_packed_after_a_cast(tmp_path: Path) -> None:
    """The parts of an fp16 graph are those of the rounded tensor."""
    torch.manual_seed(0)
    whole = torch.randn(48, 24)
    found = identity(tmp_path, {"qkv": whole}, {"q": whole[:24].half(), "k": whole[24:].half()}, "float16")
    assert (found.how, found.proved) == ({"split": 1}, True)
