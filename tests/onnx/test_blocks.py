"""Packed and split weights: what is refuted by samples, and what is no matrix at all."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save_file

from tests.onnx.graphs import PLAIN, identity, write_graph
from tieconv import inspect
from tieconv.checkpoint.parity import Identity
from tieconv.checkpoint.records import ByteRange
from tieconv.onnx.parity.reading import read_graph
from tieconv.onnx.parity.weights import weight_identity
from tieconv.sources.local import FileSet, open_files


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
        found = weight_identity(graph, checkpoint, reader, "float32", PLAIN, (), None)
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
    found = identity(tmp_path, {"absent": torch.full(shape, 2.5)}, {"other": other}, external=False)
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
    model.graph.node.append(helper.make_node("Constant", [], ["listed"], value_floats=[1.0, 2.0]))
    tensor = numpy_helper.from_array(torch.zeros(3, 2).numpy())
    body = [helper.make_node("Constant", [], ["inner"], value=tensor)]
    opset = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("local", "f", [], ["inner"], body, opset))
    onnx.save(model, path)
    held = {weight.name: weight.shape for weight in read_graph(str(path)).weights}
    assert held == {"w": (2, 2), "listed": (2,), "inner": (3, 2)}


def test_a_packed_weight_must_be_filled_to_its_end(tmp_path: Path) -> None:
    """Rows behind the last tensor of a packed matrix are explained by nothing; where one tensor ends another begins."""
    parts = {name: torch.randn(24, 16) for name in "qk"}
    more = torch.cat([*parts.values(), torch.randn(24, 16)])
    found = identity(tmp_path, parts, {"w": more})
    assert (found.how, [entry.name for entry in found.unexplained]) == ({"packed": 2}, ["w"])


def test_the_longest_piece_is_taken(tmp_path: Path) -> None:
    """Two weights begin alike where the tensor goes on: the longer one leads to the end."""
    torch.manual_seed(0)
    first, second = torch.randn(16, 8), torch.randn(16, 8)
    weights = {"a": first, "long": torch.cat([first, second])}
    found = identity(tmp_path, {"whole": torch.cat([first, second, first])}, weights)
    assert (found.how, found.lost) == ({"split": 1}, ())
