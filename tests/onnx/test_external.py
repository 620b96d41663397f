"""External data: read only from regular files of the graph's own directory, within their bounds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import tieconv as api
from fixtures.onnx_graphs import build
from tests.cli.run import refused
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.onnx.parity.graph_file import read_graph


def edited(path: Path, **entries: str) -> Path:
    """The graph with its first external tensor's entries changed."""
    model = onnx.load(path, load_external_data=False)
    tensor = next(one for one in model.graph.initializer if one.external_data)
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in kept.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return build("transposed", tmp_path / "in" / "model.onnx")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "", "..\\secret", "a\0b"])
def test_outside(graph: Path, tmp_path: Path, location: str) -> None:
    """A location that leads out of the directory is refused by name, before anything is opened."""
    shutil.copy(graph.parent / "model.onnx.data", tmp_path / "secret")
    with pytest.raises(UnsafePathError, match=r"model\.embed_tokens\.weight.*outside the model's directory"):
        api.plan_graph_dedup(edited(graph, location=location))
    with pytest.raises((UnsafePathError, UnreadableError)):
        read_graph(str(graph))


def link(data: Path) -> None:
    data.rename(data.parent.parent / "elsewhere")
    data.symlink_to("../elsewhere")


def link_inside(data: Path) -> None:
    data.rename(data.with_name("real"))
    data.symlink_to("real")


def hard_link(data: Path) -> None:
    os.link(data, data.parent.parent / "elsewhere")


def linked_directory(data: Path) -> None:
    (data.parent.parent / "real").mkdir()
    data.rename(data.parent.parent / "real" / "data")
    (data.parent / "sub").symlink_to("../real")
    edited(data.with_name("model.onnx"), location="sub/data")


@pytest.mark.parametrize("trick", [link, link_inside, hard_link, linked_directory])
def test_linked(graph: Path, trick: Callable[[Path], None]) -> None:
    """A data file that is a link, has another name, or lies behind a linked directory is refused."""
    trick(graph.parent / "model.onnx.data")
    for read in (api.plan_graph_dedup, lambda path: read_graph(str(path))):
        with pytest.raises(UnsafePathError, match=r"model\.embed_tokens\.weight.*(link|names)"):
            read(graph)


def test_fifo(graph: Path) -> None:
    """A FIFO is refused without waiting on it."""
    (graph.parent / "model.onnx.data").unlink()
    os.mkfifo(graph.parent / "model.onnx.data")
    with pytest.raises(UnsafePathError):
        api.plan_graph_dedup(graph)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "99999999"},
        {"offset": "-1"},
        {"offset": "٣"},
        {"offset": "9" * 30},
        {"length": "1"},
        {"length": "99999999999"},
        {"length": "x"},
    ],
)
def test_out_of_bounds(graph: Path, entries: dict[str, str]) -> None:
    """Offset and length are numbers that fit the file, the type and the shape."""
    with pytest.raises(UnreadableError, match=r"model\.embed_tokens\.weight"):
        api.plan_graph_dedup(edited(graph, **entries))


def test_missing_data(graph: Path) -> None:
    """A data file that is not there is named."""
    (graph.parent / "model.onnx.data").unlink()
    assert "model.onnx.data" in refused("dedup", graph)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"not a graph at all", b"\x08\x0a"])
def test_no_graph(tmp_path: Path, data: bytes) -> None:
    """What is no graph ends in one sentence, not in a traceback."""
    (tmp_path / "x.onnx").write_bytes(data)
    assert "x.onnx" in refused("dedup", tmp_path / "x.onnx")


@pytest.mark.parametrize("cut", range(1, 12))
def test_truncated(graph: Path, cut: int) -> None:
    """A graph cut short anywhere is refused in one sentence, or has lost nothing that is read."""
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) * cut // 12])
    refused("dedup", graph)


def test_what_would_be_lost_is_refused(graph: Path) -> None:
    """Sparse initializers, which the graph library drops, are refused before anything is written."""
    model = onnx.load(graph, load_external_data=False)
    one = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(one, places, [4]))
    graph.write_bytes(model.SerializeToString())
    assert "sparse tensors" in refused("dedup", graph)
