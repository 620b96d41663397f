"""What the format's own reader refuses, tieconv refuses or reports as FMT001 at level error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures.hostile import entry, file_of
from fixtures.torch_files import archive, call, honest, name, number, pickled, state, tensor, text, torch_zip
from tests.lazy import child, ort as onnxruntime, torch
from tests.onnx.nodes import op, token_ids, value
from tests.refusals import failure_of
from tieconv.errors import NotRunError, RefusedError, TieconvError
from tieconv.formats.onnx.scopes import NEWEST_IR, NEWEST_OPSET

RULE = "FMT001"


def reported(path: Path) -> list[str]:
    """The messages of FMT001, all at level error."""
    findings = [finding for finding in api.inspect(path).findings if finding.rule == RULE]
    assert all(str(finding.level) == "error" for finding in findings)
    return [finding.message for finding in findings]


@pytest.mark.parametrize("dtype", ["F3", "f32", "BF32", "float16", "\x1b[31mF32"])
def test_unknown_dtypes(dtype: str, tmp_path: Path) -> None:
    """`check` fails for a dtype that safetensors does not know, a lower-case one included."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"a": entry(dtype), "b": entry(dtype, offsets=[4, 8])}, bytes(8)))
    (message,) = reported(path)
    assert "safetensors refuses model.safetensors" in message and "of a and 1 other tensor" in message
    assert message.isprintable()


@pytest.mark.parametrize("value", [None, 1, [], {}, True])
def test_metadata_that_is_not_text(value: object, tmp_path: Path) -> None:
    """A metadata value of another type than text is refused, `null` included."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"__metadata__": {"format": value}, "a": entry()}, bytes(4)))
    assert failure_of(api.inspect, TieconvError, path).code == "safetensors.metadata"


MEMOIZED = pickled(state(text("weight") + b"\x94" + tensor()), 4)
SCALAR = call(name("numpy._core.multiarray", "scalar"), call(name("numpy", "dtype"), text("f8")), b"N")
FILES = {
    "memoize": (torch_zip(MEMOIZED), "the pickle opcode MEMOIZE"),
    "decimal": (torch_zip(pickled(state(text("weight") + tensor() + text("n") + b"I7\n"))), "the pickle opcode INT"),
    "numpy": (torch_zip(pickled(state(text("weight") + tensor() + text("best") + SCALAR))), "the global numpy"),
    "version": (archive([("data.pkl", pickled(state(text("weight") + tensor()))), ("data/0", bytes(16))]), "version"),
}


@pytest.mark.parametrize("case", FILES)
def test_what_weights_only_refuses(case: str, tmp_path: Path) -> None:
    """A torch file that tieconv reads and `torch.load(weights_only=True)` refuses is an error of `check`."""
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(FILES[case][0])
    with pytest.raises(Exception, match=r"."), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.load(path, weights_only=True)
    (message,) = reported(path)
    assert "weights_only=True refuses pytorch_model.bin" in message and FILES[case][1] in message


@pytest.mark.parametrize("case", honest(), ids=lambda case: case.name)
def test_honest_torch_files(case: object, tmp_path: Path) -> None:
    """FMT001 says of each honest file what torch itself says."""
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(case.data)  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(path, weights_only=True)
        taken = True
    except Exception:
        taken = False
    assert (not reported(path)) == taken


REFUSED = {
    "absent storage": torch_zip(pickled(b"}(" + text("x") + tensor(pid=None) + text("y") + number(1) + b"u"), b""),
    "list as a key": torch_zip(pickled(b"}(]" + number(1) + text("weight") + tensor() + b"u")),
    "device of no name": torch_zip(
        pickled(state(text("weight") + tensor() + text("d") + call(name("torch", "device"))))
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_torch_refusals(case: str, tmp_path: Path) -> None:
    """Storages of another size than they claim, keys that cannot be hashed and devices that are none are refused."""
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(REFUSED[case])
    with pytest.raises(TieconvError):
        api.inspect(path)


# -- graphs


def graph(
    nodes: list[onnx.NodeProto], *, kind: int = TensorProto.FLOAT, ir: int = 9, opset: int = 17
) -> onnx.ModelProto:
    """A graph of these nodes over a table and token ids."""
    table = numpy_helper.from_array(np.zeros((8, 4), "<f4"), "embed")
    table.data_type = kind
    inputs, outputs = [token_ids(sides=["n"])], [value("out", ["n", 4])]
    made = helper.make_graph(nodes, "g", inputs, outputs, [table])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def gather(out: str = "x") -> onnx.NodeProto:
    return op("Gather", "embed input_ids", out)


def with_values_of_nothing() -> onnx.ModelProto:
    """An initializer with a side of 0 that holds a number, in a field of another type."""
    model = graph([gather(), op("Neg", "x", "out")])
    model.graph.initializer.append(
        TensorProto(name="empty", data_type=TensorProto.UINT8, dims=[0, 4], float_data=[1.0])
    )
    return model


def with_untyped_branch() -> onnx.ModelProto:
    """A branch whose output has a tensor type that names no element type."""
    out = onnx.ValueInfoProto(name="b")
    out.type.tensor_type.SetInParent()
    branch = helper.make_graph([op("Neg", "x", "b")], "branch", [], [out])
    nodes = [gather(), op("Constant", "", "c", value=numpy_helper.from_array(np.array(True)))]
    return graph([*nodes, op("If", "c", "out", then_branch=branch, else_branch=branch)])


def with_untyped_attribute() -> onnx.ModelProto:
    """A Transpose whose `perm` does not say that it holds integers."""
    turn = op("Transpose", "x", "out", perm=[0, 2, 1])
    turn.attribute[0].ClearField("type")
    return graph([gather(), turn])


def with_untyped_attribute_of_a_function() -> onnx.ModelProto:
    """The same in the body of a function."""
    turn = op("Transpose", "a", "b", perm=[0, 2, 1])
    turn.attribute[0].ClearField("type")
    opset = helper.make_opsetid("", 17)
    model = graph([gather(), op("Turn", "x", "out", domain="local")])
    model.functions.append(helper.make_function("local", "Turn", ["a"], ["b"], [turn], [opset]))
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


GOOD = [gather(), op("Neg", "x", "out")]


def edited(change: Callable[[onnx.ModelProto], object], *, ir: int = 9) -> onnx.ModelProto:
    """The good graph with a change."""
    model = graph(GOOD, ir=ir)
    change(model)
    return model


def with_tensor(**fields: object) -> onnx.ModelProto:
    """The good graph with one more initializer."""
    tensor = TensorProto(**{"name": "t", "data_type": TensorProto.FLOAT, "dims": [2]} | fields)
    return edited(lambda model: model.graph.initializer.append(tensor))


def with_element(kind: int | None, *, shaped: bool = True) -> onnx.ModelProto:
    """The good graph with another element type of its input, or without a shape."""

    def change(model: onnx.ModelProto) -> None:
        value = onnx.ValueInfoProto(name="input_ids")
        value.type.tensor_type.SetInParent()
        if kind is not None:
            value.type.tensor_type.elem_type = kind
        if shaped:
            value.type.tensor_type.shape.dim.add().dim_param = "n"
        model.graph.input[0].CopyFrom(value)

    return edited(change)


def with_functions(model: onnx.ModelProto) -> None:
    """Two functions of one name."""
    opset = helper.make_opsetid("", 17)
    for _ in "ab":
        body = [op("Neg", "a", "b")]
        model.functions.append(helper.make_function("local", "Turn", ["a"], ["b"], body, [opset]))
    model.opset_import.append(helper.make_opsetid("local", 1))


def external(*more: tuple[str, str], values: bool = False) -> onnx.ModelProto:
    """The good graph with the values of its table in the file ``data``."""

    def change(model: onnx.ModelProto) -> None:
        table = model.graph.initializer[0]
        if not values:
            table.ClearField("raw_data")
        table.data_location = TensorProto.EXTERNAL
        for key, held in (("location", "data"), ("offset", "0"), ("length", "128"), *more):
            table.external_data.add(key=key, value=held)

    return edited(change)


GRAPHS = {
    "no opset": (edited(lambda model: model.ClearField("opset_import")), "it imports no opset"),
    "two functions": (edited(with_functions), "two functions have the name local:Turn"),
    "no graph name": (edited(lambda model: model.graph.ClearField("name")), "its graph has no name"),
    "two inputs": (
        edited(lambda model: model.graph.input.append(model.graph.input[0])),
        "two inputs have the name input_ids",
    ),
    "initializer without a name": (with_tensor(name="", float_data=[1, 2]), "an initializer has no name"),
    "initializer that is no input": (
        edited(lambda model: None, ir=3),
        "the initializer embed is not an input, as IR version 3 demands",
    ),
    "undefined input type": (with_element(99), "the input or output input_ids has the undefined element type 99"),
    "no input type": (with_element(None), "the input or output input_ids has no element type"),
    "no input shape": (with_element(TensorProto.INT64, shaped=False), "the input or output input_ids has no shape"),
    "two fields": (with_tensor(raw_data=bytes(8), float_data=[1, 2]), "the tensor t holds its values in two fields"),
    "raw strings": (
        with_tensor(data_type=TensorProto.STRING, raw_data=bytes(8)),
        "the tensor t holds strings as raw bytes",
    ),
    "numbers for strings": (
        with_tensor(data_type=TensorProto.STRING, int32_data=[1, 2]),
        "the tensor t holds strings as numbers",
    ),
    "no values": (with_tensor(data_type=TensorProto.STRING), "the tensor t holds no values"),
    "values here and elsewhere": (external(values=True), "the tensor embed has external data and also holds values"),
    "unknown key": (external(("colour", "red")), "the tensor embed has the unknown key colour in its external data"),
    "two locations": (external(("location", "data")), "the tensor embed has two locations in its external data"),
    "empty checksum": (external(("checksum", "")), "the tensor embed has an empty checksum in its external data"),
    "node without names": (
        graph([*GOOD, onnx.NodeProto(op_type="Neg")]),
        "node 2 (Neg) has neither an input nor an output",
    ),
    "opset that is not imported": (
        graph([gather(), op("Neg", "x", "out", domain="com.microsoft")]),
        "uses the opset of com.microsoft, which is not imported",
    ),
    "cycle": (graph([op("Add", "x b", "a"), op("Neg", "a", "b"), *GOOD]), "a cycle"),
    "own output": (graph([gather(), op("Add", "x out", "out")]), "its own output"),
    "order": (graph(GOOD[::-1]), "not in topological order"),
    "unknown name": (graph([gather(), op("Neg", "y", "out")]), "which is not an input"),
    "undefined type": (graph(GOOD, kind=0), "the undefined element type 0"),
    "unknown type": (graph(GOOD, kind=99), "the undefined element type 99"),
    "made twice": (graph([*GOOD, op("Neg", "x", "out")]), "a name that another value has"),
    "no operator": (graph([gather(), op("", "x", "out")]), "has no operator"),
    "no output": (graph([gather()]), "no node computes its output out"),
    "two names": (
        graph([op("Gather", "embed input_ids", "x", name="n"), op("Neg", "x", "out", name="n")]),
        "two nodes have the name n",
    ),
    "values of nothing": (with_values_of_nothing(), "has no elements but holds values"),
    "untyped attribute": (with_untyped_attribute(), "the attribute perm without a type"),
    "untyped attribute of a function": (with_untyped_attribute_of_a_function(), "the attribute perm without a type"),
    "untyped branch": (with_untyped_branch(), "has the undefined element type 0"),
    "newer IR": (graph(GOOD, ir=NEWEST_IR + 1), "IR version"),
    "newer operators": (graph(GOOD, opset=NEWEST_OPSET + 1), "imports the unsupported opset"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_that_onnx_refuses(case: str, tmp_path: Path) -> None:
    """The checker or a session refuses the graph; `inspect` reports why, and nothing is written from it."""
    path = tmp_path / "model.onnx"
    path.write_bytes(GRAPHS[case][0].SerializeToString())
    (tmp_path / "data").write_bytes(bytes(128))
    with pytest.raises(Exception, match=r"."):
        onnx.checker.check_model(path)
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    messages = reported(path)
    assert any(GRAPHS[case][1] in message for message in messages), messages
    for plan in (api.plan_graph_dedup, api.plan_graph_untie):
        assert failure_of(plan, RefusedError, path).code == "format.refused"


def test_good_graphs(tmp_path: Path) -> None:
    """Also with an offset or a length that is repeated, which the checker and a session accept."""
    path = tmp_path / "model.onnx"
    (tmp_path / "data").write_bytes(bytes(128))
    for model in (graph(GOOD), external(), external(("length", "128")), external(("offset", "0"))):
        path.write_bytes(model.SerializeToString())
        onnx.checker.check_model(path)
        assert opens(path)
        assert reported(path) == []


def test_newest_versions() -> None:
    """A newer ONNX release asks for a look at what its runtime reads."""
    assert (onnx.IR_VERSION, onnx.defs.onnx_opset_version()) <= (NEWEST_IR, NEWEST_OPSET)


# -- records that torch.load parses

RECORDS = {
    "byteorder": (b"little", b"little\n", b" little", b"", b"little\0"),
    ".storage_alignment": (b"64", b"", b"x", b"64\0", b"64\n", b" 64", b"6_4", b"0x40", b"\xff"),
    ".data/serialization_id": (b"12", b"", b"\xff"),
    "version": (b"3\n", b"3", b"x", b"", b"-3"),
}


def test_records_of_an_archive(tmp_path: Path) -> None:
    """tieconv is silent about no record that `torch.load` refuses, and takes the usual ones."""
    weights = [("data.pkl", pickled(state(text("weight") + tensor()))), ("data/0", bytes(16))]
    usual = {"byteorder": b"little", "version": b"3\n"}
    path = tmp_path / "pytorch_model.bin"
    for record, values in RECORDS.items():
        for content in values:
            path.write_bytes(archive([*weights, *(usual | {record: content}).items()]))
            refusal = ""
            try:
                torch.load(path, weights_only=True)
            except Exception as error:
                refusal = str(error)
            try:
                silent = not reported(path)
            except TieconvError:
                silent = False
            assert not (silent and refusal), (record, content, refusal)
            assert silent or content != values[0], (record, content)


# -- graphs against the definitions of their operators


def test_operators_of_this_runtime() -> None:
    """The table is that of the installed ONNX Runtime."""
    from fixtures.onnx_operators import TABLE, text as table

    assert TABLE.read_text() == table()


BROKEN = {
    "required input is empty": [gather(), op("MatMul", "x -", "out")],
    "unknown operator": [gather(), op("Nagate", "x", "out")],
    "operator of a later opset": [gather(), op("RMSNormalization", "x embed", "out")],
    "deprecated operator": [gather(), op("Upsample", "x embed", "out")],
    "too few inputs": [gather(), op("Add", "x", "out")],
    "too many inputs": [gather(), op("Neg", "x x", "out")],
    "too many outputs": [gather(), op("Neg", "x", "out more")],
    "empty output": [gather(), op("Neg", "x", "out"), op("Neg", "x", "-")],
    "unknown attribute": [gather(), op("Neg", "x", "out", to=1)],
    "no required attribute": [gather(), op("Cast", "x", "out")],
    "attribute of another type": [gather(), op("Cast", "x", "out", to=1.5)],
}
"""What onnx's checker or a session of ONNX Runtime refuses, and the nodes of a graph with it."""
HEALTHY = {
    "optional input left empty": [gather(), op("Clip", "x - c", "out")],
    "variadic": [gather(), op("Concat", "x x x", "out", axis=0)],
    "operator of the runtime's optimiser": [gather(), op("SimplifiedLayerNormalization", "x row", "out", axis=-1)],
    "contributed operator": [gather(), op("FusedMatMul", "x square", "out", domain="com.microsoft", alpha=0.5)],
}


def with_constants(nodes: list[onnx.NodeProto], opset: int) -> onnx.ModelProto:
    model = graph(nodes, opset=opset)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for constant, shape in (("c", ()), ("row", (4,)), ("square", (4, 4))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, "<f4"), constant))
    return model


def opens(path: Path) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


def test_operators(tmp_path: Path) -> None:
    """Broken nodes are errors and stop every command that writes; healthy nodes of several opsets are silent."""
    path = tmp_path / "model.onnx"
    for case, nodes in BROKEN.items():
        path.write_bytes(with_constants(nodes, 17).SerializeToString())
        assert not opens(path), case
        assert reported(path), case
        for plan in (api.plan_graph_dedup, api.plan_graph_untie):
            with pytest.raises(RefusedError):
                plan(path)
    for case, nodes in HEALTHY.items():
        for opset in (13, 17, 21):
            path.write_bytes(with_constants(nodes, opset).SerializeToString())
            assert opens(path), (case, opset)
            assert not reported(path), (case, opset)


def test_custom_domains_are_not_known(tmp_path: Path) -> None:
    """tieconv makes no claim about an operator of another domain, and a function of the model may have any name."""
    path = tmp_path / "model.onnx"
    model = graph([gather(), op("Anything", "x", "out", domain="my.domain")])
    model.opset_import.append(helper.make_opsetid("my.domain", 1))
    path.write_bytes(model.SerializeToString())
    assert not reported(path)
    api.plan_graph_dedup(path)


def test_types_that_no_session_takes(tmp_path: Path) -> None:
    """What only type inference finds stops the commands that write, also if there is nothing to change."""
    path = tmp_path / "model.onnx"
    path.write_bytes(graph([gather(), op("Add", "x input_ids", "out")]).SerializeToString())
    assert not opens(path)
    for plan in (api.plan_graph_dedup, api.plan_graph_untie):
        assert failure_of(plan, RefusedError, path).code == "session.load"


def test_check_opens_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that no session opens fails the gate, and one that was not opened is not reported as ok alone."""
    path = tmp_path / "model.onnx"
    path.write_bytes(graph([gather(), op("Add", "x input_ids", "out")]).SerializeToString())

    def findings_of_check() -> list[tuple[str, str, str]]:
        (model,) = api.check(path).models
        return [(entry.finding.rule, str(entry.finding.level), entry.finding.message) for entry in model.findings]

    ((rule, level, message),) = findings_of_check()
    assert (rule, level) == ("FMT001", "error") and "session of ONNX Runtime refuses model.onnx" in message
    assert str(tmp_path) not in message and not api.inspect(path).findings
    with monkeypatch.context() as patch:
        patch.setattr(child, "MOST_OPENED", 10)
        ((rule, level, message),) = findings_of_check()
        assert (rule, level) == ("FMT001", "note") and "was not opened by a session: its files have" in message
    with monkeypatch.context() as patch:
        slow = NotRunError("opening model.onnx does not end within 30 s")
        patch.setattr(child, "limited", Mock(side_effect=slow))
        assert [entry[:2] for entry in findings_of_check()] == [("FMT001", "warning")]
    with monkeypatch.context() as patch:
        patch.setattr(child, "refusal", lambda _: "NOT_IMPLEMENTED : no kernel")
        assert [entry[:2] for entry in findings_of_check()] == [("FMT001", "note")]
    monkeypatch.setattr(child, "has_onnxruntime", lambda: False)
    assert not findings_of_check()


def test_healthy_fixtures_are_silent() -> None:
    """No graph that an exporter wrote is reported."""
    paths = sorted((Path(__file__).parents[2] / "fixtures").rglob("*.onnx"))
    assert len(paths) > 10
    for path in paths:
        assert not reported(path), path
