"""Packed and split weights: what is refuted by samples, and what is no matrix at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
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
