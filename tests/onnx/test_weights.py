"""Weight identity: every bit after torch's own cast, of whole, packed, split and transposed matrices."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import helper, numpy_helper

from tests.lazy import save_file, torch, weight_identity
from tests.onnx.graphs import identity, unchanged, write_graph
from tests.onnx.nodes import op
from tieconv import inspect
from tieconv.checkpoint.results.parity import Identity
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.checkpoint.write_plan import Gathered, OutputWeights, Piece
from tieconv.errors import UnreadableError, UnsafePathError, VerificationError
from tieconv.execute.verify import Verifier
from tieconv.execute.write import Syncer, Writer
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.sources.local import FileSet, open_files

DTYPES = ("float32", "float16", "bfloat16")


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
    tensor = matrix.to(getattr(torch, stored))
    tensor[0, :6] = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 2**-25, 1e30])
    weights = {"w": tensor.to(getattr(torch, precision)).T}
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
    known = tuple(weight_identity.folds(config))
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


class _Counted:
    """A reader that counts what is read."""

    def __init__(self, files: FileSet) -> None:
        self.files, self.bytes = files, 0

    def read_into(self, source: ByteRange, first: int, into: memoryview) -> None:
        self.bytes += len(into)
        self.files.read_into(source, first, into)


def _read(folder: Path, tensors: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]) -> tuple[Identity, float]:
    """The identity, and the bytes read for it over those of the checkpoint."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    graph = read_graph(str(write_graph(folder / "g.onnx", weights)))
    checkpoint = inspect(folder, depth="header").checkpoint
    with open_files(checkpoint.root) as files:
        reader = _Counted(files)
        found = weight_identity.weight_identity(graph, checkpoint, reader, "float32", unchanged(), (), None)
    return found, reader.bytes / found.bytes


def test_another_model_is_refuted_by_samples(tmp_path: Path) -> None:
    """A checkpoint of the same shapes with other values fails after a fraction of it was read."""
    shapes = [(2048, 32), (512, 512), (1024, 64), (8192,), (4096,)]
    tensors, weights = ({str(i): torch.randn(shape) for i, shape in enumerate(shapes)} for _ in "ab")
    found, share = _read(tmp_path, tensors, weights)
    assert (found.found, len(found.lost), found.proved) == (0, 5, False)
    assert share < 0.7


def test_constant_weights_are_given_up(tmp_path: Path) -> None:
    """Where samples refute nothing, as in zeros, the places that are compared are counted, not tried one by one."""
    tensor = torch.zeros(512, 64)
    tensor[201, 29] = 1
    found, share = _read(tmp_path, {"zeros": tensor}, {"zeros": torch.zeros(4096, 64)})
    assert not found.proved
    assert share < 200


@pytest.mark.parametrize("shape", [(), (4, 2, 3), (0, 4)], ids=str)
def test_what_is_no_matrix_is_in_no_block(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Scalars, kernels and empty tensors that the graph lacks, beside weights of as many axes, are lost."""
    other = torch.ones(8, *shape[1:]) if shape else torch.tensor(1.0)
    weights = {"other": other, "matrix": torch.zeros(8, 2)}
    found = identity(tmp_path, {"absent": torch.full(shape, 2.5)}, weights, external=False)
    assert [entry.name for entry in found.lost] == ["absent"]


def test_parts_of_parts(tmp_path: Path) -> None:
    """A tensor in pieces of several lengths, some stored twice; the copies are explained as well."""
    torch.manual_seed(0)
    whole = torch.cat([torch.zeros(8, 16), torch.randn(24, 16), torch.zeros(16, 16)])
    weights = {"a": whole[:8], "b": whole[8:32], "c": whole[8:32].T, "d": whole[32:]}
    found = identity(tmp_path, {"whole": whole, "like b": torch.ones(24, 16)}, weights | {"ones": torch.ones(24, 16)})
    assert (found.how, found.lost, found.unexplained) == ({"split": 1, "straight": 1}, (), ())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("transposed", [False, True])
def test_padding_hides_no_damage(tmp_path: Path, axis: int, transposed: bool) -> None:
    """A second copy that is padded counts as one: whole it is explained, with one bit off the graph fails."""
    matrix = torch.randn(100, 80)
    padding = torch.zeros((4, 80) if axis == 0 else (100, 4))
    copy = torch.cat([matrix, padding], axis)
    weights = {"head": matrix.clone(), "padded": copy.T.contiguous() if transposed else copy}
    whole = identity(tmp_path, {"embed": matrix}, weights)
    assert (whole.unexplained, whole.proved, whole.how) == ((), True, {"straight": 1})
    weights["padded"].view(torch.int32)[50, 50] ^= 1
    damaged = identity(tmp_path, {"embed": matrix}, weights)
    assert [(entry.name, entry.required) for entry in damaged.unexplained] == [("padded", True)]


@pytest.mark.parametrize("shape", [(1, 100, 80), (8000,), (80, 1, 100), (1, 8000)], ids=str)
def test_other_axes_hide_no_damage(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A second copy with axes of length 1, turned or in a row counts as one as well."""
    matrix = torch.randn(100, 80)
    damaged = matrix.clone()
    damaged[50, 50] += 1
    copy = (damaged.T if shape[0] == 80 else damaged).reshape(shape)
    found = identity(tmp_path, {"embed": matrix}, {"head": matrix.clone(), "other": copy})
    assert [(entry.name, entry.required) for entry in found.unexplained] == [("other", True)]


def test_constants_of_every_kind_are_weights(tmp_path: Path) -> None:
    """Numbers in a list of floats, and those in a function of the graph, are weights like any other."""
    path = write_graph(tmp_path / "g.onnx", {"w": torch.ones(2, 2)})
    model = onnx.load(path)
    model.graph.node.append(op("Constant", "", "listed", value_floats=[1.0, 2.0]))
    body = [op("Constant", "", "inner", value=numpy_helper.from_array(torch.zeros(3, 2).numpy()))]
    opset = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("local", "f", [], ["inner"], body, opset))
    onnx.save(model, path)
    held = {weight.name: weight.shape for weight in read_graph(str(path)).weights}
    assert held == {"w": (2, 2), "listed": (2,), "inner": (3, 2)}


@pytest.mark.parametrize("order", [("q", "k", "rest"), ("q", "row", "k")], ids=" ".join)
def test_a_packed_weight_must_be_filled(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Rows that belong to no tensor, behind the last or one between two, leave a packed matrix unexplained."""
    torch.manual_seed(0)
    parts = {name: torch.randn(24, 16) for name in "qk"}
    others = {"rest": torch.randn(24, 16), "row": torch.randn(1, 16)}
    found = identity(tmp_path, parts, {"w": torch.cat([(parts | others)[name] for name in order])})
    assert (found.how, [entry.name for entry in found.unexplained]) == ({"packed": 2}, ["w"])


def test_the_longest_piece_is_taken(tmp_path: Path) -> None:
    """Two weights begin alike where the tensor goes on: the longer one leads to the end."""
    torch.manual_seed(0)
    first, second = torch.randn(16, 8), torch.randn(16, 8)
    weights = {"a": first, "long": torch.cat([first, second])}
    found = identity(tmp_path, {"whole": torch.cat([first, second, first])}, weights)
    assert (found.how, found.lost) == ({"split": 1}, ())


@pytest.mark.parametrize(("rows", "whole"), [(15, False), (16, True)])
def test_copies_of_a_tensor_do_not_overlap(tmp_path: Path, rows: int, whole: bool) -> None:
    """A weight of equal rows is explained by a tensor of eight of them where it is a whole number of times as long."""
    found = identity(tmp_path, {"zeros": torch.zeros(8, 16)}, {"w": torch.zeros(rows, 16)})
    assert (found.how, found.unexplained == ()) == ({"packed": 1}, whole)


def test_one_tensor_within_another(tmp_path: Path) -> None:
    """Where a short tensor is the middle of a long one, what the long one fills is filled."""
    torch.manual_seed(0)
    long, last = torch.randn(24, 16), torch.randn(24, 16)
    tensors = {"long": long, "short": long[8:16].clone(), "last": last}
    found = identity(tmp_path, tensors, {"w": torch.cat([long, last])})
    assert (found.how, found.lost, found.unexplained) == ({"packed": 3}, (), ())


def test_pieces_that_begin_alike_are_given_up(tmp_path: Path) -> None:
    """Of weights that begin as the tensor does and go on otherwise, some are compared and not all."""
    weights = {str(i): torch.cat([torch.zeros(31, 64), torch.full((1, 64), float(i + 1))]) for i in range(900)}
    found, share = _read(tmp_path, {"zeros": torch.zeros(64, 64)}, weights)
    assert not found.proved
    assert share < 300


@pytest.mark.parametrize(("rows", "required"), [(63, None), (64, True)])
def test_a_copy_in_a_row_from_4096_elements_on(tmp_path: Path, rows: int, required: bool | None) -> None:
    """A damaged copy that is stored as a vector counts as soon as a vector must be found, and not before."""
    matrix = torch.randn(rows, 64)
    damaged = matrix.reshape(-1).clone()
    damaged[50] += 1
    found = identity(tmp_path, {"embed": matrix}, {"head": matrix.clone(), "other": damaged})
    assert [entry.required for entry in found.unexplained] == ([] if required is None else [required])


@pytest.mark.parametrize(
    ("shape", "required"), [((8001,), []), ((125, 80), [True]), ((126, 80), [False]), ((90, 80), [False])], ids=str
)
def test_what_may_be_a_damaged_copy(tmp_path: Path, shape: tuple[int, ...], required: list[bool]) -> None:
    """A matrix that is longer than a tensor by up to a quarter must hold it; any other, or a vector, need not."""
    matrix = torch.randn(100, 80)
    found = identity(tmp_path, {"embed": matrix}, {"head": matrix.clone(), "other": torch.ones(shape)})
    assert [entry.required for entry in found.unexplained] == required


def test_weights_of_two_types(tmp_path: Path) -> None:
    """What is packed or split in one float type is found beside weights of another."""
    torch.manual_seed(0)
    parts = {name: torch.randn(24, 24) for name in "qkv"}
    whole = torch.cat(list(parts.values()))
    half = {"a half": torch.randn(7, 24).half()}
    assert identity(tmp_path, parts, half | {"qkv": whole}).how == {"packed": 3}
    assert identity(tmp_path, {"qkv": whole}, half | parts).how == {"split": 1}


def test_packed_is_not_looked_for_in_pieces(tmp_path: Path) -> None:
    """A tensor that stands among others and in pieces as well is found once, as packed."""
    torch.manual_seed(0)
    tensor, other = torch.randn(24, 16), torch.randn(24, 16)
    weights = {"w": torch.cat([tensor, other]), "up": tensor[:12].clone(), "down": tensor[12:].clone()}
    assert identity(tmp_path, {"t": tensor, "o": other}, weights).how == {"packed": 2}


def test_nothing_to_look_for_reads_nothing() -> None:
    """Where every tensor stands whole, no weight is hashed."""
    assert weight_identity.find_blocks({}, {"w": weight_identity.Weight("FLOAT", None)}).forms == {}


def test_what_samples_refute_is_no_try(tmp_path: Path) -> None:
    """A tensor behind many places that begin as it does is found: samples of its other rows refute them."""
    torch.manual_seed(0)
    blocks = [torch.cat([torch.zeros(1, 16), torch.randn(7, 16)]) for _ in range(101)]
    assert identity(tmp_path, {"last": blocks[-1]}, {"w": torch.cat(blocks)}).how == {"packed": 1}


@pytest.mark.parametrize("stored", ["model.positions.weight", "positions.weight"])
def test_rows_before_position_0(tmp_path: Path, stored: str) -> None:
    """A table may lack the rows that its class never looks up, and no other: one more, or one bit, and it is lost."""
    torch.manual_seed(0)
    table, offsets = torch.randn(66, 32), {"model.positions.weight": 2}
    found = identity(tmp_path, {stored: table}, {"w": table[2:].clone()}, offsets=offsets)
    assert (found.how, found.lost, found.unexplained) == ({"without 2 rows before position 0": 1}, (), ())
    assert not identity(tmp_path, {stored: table}, {"w": table[2:].clone()}).proved
    assert not identity(tmp_path, {stored: table}, {"w": table[3:].clone()}, offsets=offsets).proved
    damaged = table[2:].clone()
    damaged[5, 5] += 1
    assert not identity(tmp_path, {stored: table}, {"w": damaged}, offsets=offsets).proved
    assert not identity(tmp_path, {"other.weight": table}, {"w": table[2:].clone()}, offsets=offsets).proved
    whole = identity(tmp_path, {stored: table}, {"w": table.clone()}, offsets=offsets)
    assert whole.how == {"straight": 1}


@pytest.mark.parametrize("shape", [(2, 32), (1, 32), (66,)], ids=str)
def test_what_is_no_longer_table(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A table of no more rows than stand before position 0, or a vector, has nothing left to look for."""
    tensor = torch.arange(1.0, prod(shape) + 1).reshape(shape)
    weights = {"w": torch.zeros(66, 32), "v": torch.arange(3.0, 67.0)}
    found = identity(tmp_path, {"p.weight": tensor}, weights, offsets={"p.weight": 2})
    assert [entry.name for entry in found.lost] == ["p.weight"]


sides = st.integers(1, 11)


@settings(max_examples=60, deadline=None)
@given(sides, sides, st.sampled_from([("U8", "u1"), ("F16", "u2"), ("F32", "u4"), ("F64", "u8")]), sides, sides)
def test_turned(rows: int, columns: int, kind: tuple[str, str], before: int, after: int) -> None:
    """What is written is the transposed, and a byte that is wrong afterwards is found where it is."""
    matrix = np.arange(1, rows * columns + 1).astype(kind[1]).reshape(rows, columns)
    content = Gathered(ByteRange("x", before, before + matrix.nbytes), kind[0], (columns, rows), (1, columns))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x").write_bytes(bytes(before) + matrix.tobytes())
        verify = written(Path(folder), Piece(after, content))
        made = Path(folder) / "new" / "y"
        assert made.read_bytes() == bytes(after) + matrix.T.tobytes()
        verify()
        wrong = after + (rows * columns // 2) * matrix.itemsize
        with made.open("r+b") as file:
            file.seek(wrong)
            file.write(bytes([made.read_bytes()[wrong] ^ 1]))
        with pytest.raises(VerificationError, match=f"differs from its source at byte {wrong} "):
            verify()


def written(folder: Path, piece: Piece) -> Callable[[], None]:
    """Write a file of this piece to the folder `new`; return what compares it with its source."""
    (folder / "new").mkdir()
    output = OutputWeights("y", (), None, pieces=(piece,))
    syncer = Syncer()
    writer = Writer(folder, folder / "new", syncer, lambda _: None, lambda _: None)
    writer.weights(output, "y")
    syncer.stop()
    verifier = Verifier(folder, folder / "new", writer.record, False, lambda _: None)
    return lambda: verifier.weights(output, "y")


@pytest.mark.parametrize("shape", [(3, 5), (1, 7), (7, 1)])
def test_copied(tmp_path: Path, shape: tuple[int, int]) -> None:
    """A content that is not turned is copied as it lies."""
    matrix = np.arange(shape[0] * shape[1], dtype="f4").reshape(shape)
    (tmp_path / "x").write_bytes(matrix.tobytes())
    content = Gathered(ByteRange("x", 0, matrix.nbytes), "F32", shape, (shape[1], 1))
    written(tmp_path, Piece(4, content))()
    assert (tmp_path / "new" / "y").read_bytes() == bytes(4) + matrix.tobytes()
