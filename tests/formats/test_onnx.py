"""Graphs are read without onnx as onnx reads them, and hostile ones end in one sentence."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from fixtures.onnx_graphs import build
from tests.onnx import nodes
from tests.onnx.nodes import edit_external, op, value
from tests.patience import examples, prompt
from tieconv.checkpoint.model_files import Checkpoint
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats import read_checkpoint
from tieconv.formats.onnx.messages import MAX_FIELDS
from tieconv.formats.onnx.tensor import TYPES, SpeltReader
from tieconv.sources.local import locate, open_files


def read(path: Path) -> Checkpoint:
    listing = locate(str(path))
    with open_files(listing.root) as files:
        return read_checkpoint(listing, files)


def stored(path: Path) -> dict[str, bytes]:
    """Every tensor's bytes by the records."""
    listing = locate(str(path))
    with open_files(listing.root) as files:
        reader, contents = SpeltReader(files, files), {}
        for name, record in read_checkpoint(listing, files).tensors.items():
            buffer = bytearray(record.range.size)
            reader.read_into(record.range, 0, memoryview(buffer))
            contents[name] = bytes(buffer)
    return contents


def model(tensors: list[onnx.TensorProto], nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(nodes or [], "g", [], [], tensors))


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


def raw(folder: Path, data: bytes) -> Path:
    (folder / "model.onnx").write_bytes(data)
    return folder / "model.onnx"


def _has_nan(array: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):  # widening a signalling NaN warns
        return bool(np.isnan(array.astype("f8")).any())


KINDS = [kind for kind in TYPES if kind not in (15, 21, 22, 23, 25, 26) and kind in TensorProto.DataType.values()]
"""Types whose array has the bytes of the tensor."""


@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_records_are_what_onnx_reads(data: st.DataObject, tmp_path: Path) -> None:
    """Any initializer, raw, spelt as numbers or beside the graph, has the bytes that numpy_helper gives."""
    external = data.draw(st.booleans())
    tensors = []
    for number in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(KINDS))
        shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
        count = int(np.prod(shape, dtype=int))
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        raw = data.draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
        if kind == TensorProto.BOOL:
            raw = bytes(byte & 1 for byte in raw)
        name = data.draw(st.text(max_size=5)) + str(number)
        array = np.frombuffer(raw, dtype).reshape(shape)
        # onnx spells out no complex array, no scalar of some types, and no NaN with its payload.
        if shape and not external and array.dtype.kind != "c" and data.draw(st.booleans()) and not _has_nan(array):
            tensors.append(helper.make_tensor(name, kind, shape, array))
        else:
            tensors.append(helper.make_tensor(name, kind, shape, raw, raw=True))
    (tmp_path / "model.onnx.data").unlink(missing_ok=True)
    path = tmp_path / "model.onnx"
    onnx.save(model(tensors), path, save_as_external_data=external, location="model.onnx.data", size_threshold=0)
    contents, records = stored(path), read(path).tensors
    for tensor in onnx.load(path).graph.initializer:
        array = numpy_helper.to_array(tensor)
        record = records[tensor.name]
        assert (record.dtype, record.shape) == (TYPES[tensor.data_type][0], tuple(tensor.dims))
        assert contents[tensor.name] == array.tobytes()


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1, TensorProto.STRING, 99])
def test_unknown_types_are_bytes(tmp_path: Path, kind: int) -> None:
    """A type without whole bytes, or that nobody knows, is kept and not looked into."""
    tensor = TensorProto(name="w", data_type=kind, dims=[4], raw_data=b"ab")
    if kind == TensorProto.STRING:
        tensor = helper.make_tensor("w", kind, [2], [b"a", b"b"])
    record = read(saved(tmp_path, model([tensor]))).tensors["w"]
    assert record.nbytes > 0 and record.dtype not in ("F32", "U8")


def test_packed_or_not(tmp_path: Path) -> None:
    """Numbers with a tag each are the same tensor."""
    body = (
        b"\x08\x03" + b"\x10\x01" + b"".join(b"\x25" + struct.pack("<f", value) for value in (1, 2, 3)) + b"\x42\x01w"
    )
    graph = b"\x2a" + bytes([len(body)]) + body
    (tmp_path / "model.onnx").write_bytes(b"\x3a" + bytes([len(graph)]) + graph)
    onnx.load(tmp_path / "model.onnx")
    assert stored(tmp_path / "model.onnx") == {"w": np.array([1, 2, 3], "<f4").tobytes()}


def tensor(**fields: object) -> TensorProto:
    return TensorProto(**{"name": "w", "data_type": 1, "dims": [2, 2], "raw_data": bytes(16), **fields})


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([tensor(dims=[-2, -2])], "negative dimension"),
        ([tensor(dims=[2**62, 2**62])], "but has 16"),
        ([tensor(dims=[1] * 65 + [4])], "66 dimensions"),
        ([tensor(dims=[3, 3])], "needs 36 bytes but has 16"),
        ([tensor(raw_data=b"")], "but has 0"),
        ([TensorProto(name="w", data_type=7, dims=[3], int64_data=[1, 2])], "needs 24 bytes but has 16"),
        ([tensor(), tensor()], "two initializers named w"),
    ],
)
def test_tensors_that_do_not_add_up(tmp_path: Path, made: list[TensorProto], words: str) -> None:
    """Sides, bytes and names have to agree."""
    with pytest.raises(UnreadableError, match=words):
        read(saved(tmp_path, model(made)))


@pytest.mark.parametrize("external", [True, False])
def test_truncated_anywhere(tmp_path: Path, external: bool) -> None:
    """Cut at any byte a graph is refused, or says less; nothing else happens."""
    path = build("branches", tmp_path / "model.onnx", external=external)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7 if external else 997):
        path.write_bytes(whole[:cut])
        try:
            read(path)
        except UnreadableError as error:
            assert error.message.startswith("model.onnx")


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged(edits: list[tuple[int, int]], tmp_path: Path) -> None:
    """Bytes changed at random end in an error of tieconv's or in a checkpoint."""
    path = build("by_node", tmp_path / "model.onnx")
    data = bytearray(path.read_bytes())
    for offset, byte in edits:
        data[offset % len(data)] = byte
    path.write_bytes(data)
    try:
        read(path)
    except (UnreadableError, UnsafePathError) as error:
        assert "\n" not in error.message


def field(number: int, content: bytes) -> bytes:
    length = len(content)
    size = bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14 & 127 | 128, length >> 21])
    return bytes([number << 3 | 2]) + size + content


def nested(depth: int) -> bytes:
    """Graphs within graphs; the protobuf library itself stops at 33."""
    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))
    return field(7, graph)


def circle() -> onnx.ModelProto:
    return nodes.model([op("Identity", "a", "logits"), op("Identity", "logits", "a")], [], [value("logits", [1])])


def test_nesting(tmp_path: Path) -> None:
    """Graphs within graphs have an end; a graph that reads its own output is read."""
    with pytest.raises(UnreadableError, match="nests more than 64"):
        read(raw(tmp_path, nested(66)))
    assert read(raw(tmp_path, nested(60))).graphs[0].nodes == 60
    assert read(saved(tmp_path, circle())).graphs[0].head is None


def test_a_long_chain_of_factors(tmp_path: Path) -> None:
    """Logits times a computed number, behind more products than calls of Python can nest."""
    chain = [op("Mul", f"c f{number}", f"f{number + 1}") for number in range(1100)]
    chain.append(op("ReduceMean", "ids", "f0", keepdims=0))
    chain += [op("MatMul", "ids head", "products"), op("Mul", "products f1100", "logits")]
    tensors = {"head": np.ones((8, 64), "<f4"), "c": np.float32(2)}
    made = nodes.model(chain, [value("ids", [1, 8])], [value("logits", [1, 64])], tensors)
    assert read(saved(tmp_path, made)).graphs[0].nodes == 1103


def test_many_fields(tmp_path: Path) -> None:
    """Fields of two bytes by the million cost seconds of work, not minutes."""
    raw(tmp_path, field(7, b"\x08\x00" * (MAX_FIELDS + 10)))
    with prompt(5), pytest.raises(UnreadableError, match="more than 600,000 fields"):
        read(tmp_path / "model.onnx")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "", "..\\secret", "a\0b", "link"])
def test_external_outside(tmp_path: Path, location: str) -> None:
    """External data outside the directory, or behind a link, is refused before it is opened."""
    path = build("transposed", tmp_path / "in" / "model.onnx")
    (tmp_path / "in" / "link").symlink_to("model.onnx.data")
    with pytest.raises(UnsafePathError, match=r"embed_tokens"):
        read(edit_external(path, location=location))


@pytest.mark.parametrize("entries", [{"offset": "99999999"}, {"offset": "-1"}, {"length": "1"}, {"length": "9" * 19}])
def test_external_bounds(tmp_path: Path, entries: dict[str, str]) -> None:
    """Offset and length fit the file, the type and the shape."""
    with pytest.raises(UnreadableError, match=r"embed_tokens"):
        read(edit_external(build("transposed", tmp_path / "model.onnx"), **entries))


def test_external_data_is_missing(tmp_path: Path) -> None:
    """The hint names the file to fetch."""
    path = build("transposed", tmp_path / "model.onnx")
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(
        UnreadableError, match=r"model.onnx stores its weights in model.onnx.data, which is miss"
    ) as error:
        read(path)
    assert error.value.hint.startswith("fetch model.onnx.data into the directory of the graph")


def test_external_fifo(tmp_path: Path) -> None:
    """A FIFO is refused without waiting on it."""
    path = build("transposed", tmp_path / "model.onnx")
    (tmp_path / "model.onnx.data").unlink()
    os.mkfifo(tmp_path / "model.onnx.data")
    with pytest.raises(UnsafePathError):
        read(path)


def test_external_data_of_attributes(tmp_path: Path) -> None:
    """A constant's data is held to the same."""
    node = helper.make_node("Constant", [], ["c"], value=tensor(raw_data=b""))
    node.attribute[0].t.ClearField("raw_data")
    node.attribute[0].t.data_location = TensorProto.EXTERNAL
    node.attribute[0].t.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(UnsafePathError):
        read(saved(tmp_path, model([], [node])))


def test_names_with_control_characters(tmp_path: Path) -> None:
    """Names come through as they are, and are escaped where they are printed."""
    from tests.cli.run import ok

    path = saved(tmp_path, model([tensor(name="\x1b[31mred\n")]))
    assert "\x1b[31mred\n" in read(path).tensors
    assert "\x1b" not in ok("inspect --depth full", path).stdout


def test_sparse_initializers(tmp_path: Path) -> None:
    """They are counted; their values are no tensors of the checkpoint."""
    proto = model([tensor()])
    proto.graph.sparse_initializer.add(values=tensor(name="s"), dims=[4, 4])
    graph_file = read(saved(tmp_path, proto))
    assert graph_file.graphs[0].sparse == 1 and set(graph_file.tensors) == {"w"}


def test_two_graphs_in_one_file(tmp_path: Path) -> None:
    """A file with a second graph, which readers would merge, is refused."""
    data = model([tensor()]).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data + data)
    with pytest.raises(UnreadableError, match="two graphs"):
        read(tmp_path / "model.onnx")
