"""The parts of an encoder-decoder's export and parity, without a trace."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.lazy import (
    batches,
    bindings,
    carry_out,
    encoder_decoder,
    export_layouts,
    ir,
    ort,
    passes,
    sample_inputs,
    torch,
)
from tests.onnx.nodes import model, op, save
from tieconv.checkpoint.results.parity import Identity
from tieconv.errors import RefusedError, UnreadableError, VerificationError
from tieconv.reference.model import Batch

F, N = TensorProto.FLOAT, TensorProto.INT64
Axes = list[Any]


def value(name: str, kind: int, *axes: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(axes))


def saved(path: Path, inputs: Axes, outputs: Axes, nodes: Axes = [], weights: Axes = []) -> Path:  # noqa: B006
    return save(model(nodes, inputs, outputs, weights), path)


IDS, MASK = value("input_ids", N, "b", "s"), value("encoder_attention_mask", N, "b", "e")
HIDDEN = value("encoder_hidden_states", F, "b", "e", 4)


def cache(prefix: str, side: str, length: object) -> list[onnx.ValueInfoProto]:
    return [value(f"{prefix}.0.{side}.{part}", F, "b", 2, length, 2) for part in ("key", "value")]


def encoder(folder: Path, *more: onnx.ValueInfoProto, suffix: str = "", states: str = "last_hidden_state") -> None:
    inputs = [IDS, value("attention_mask", N, "b", "s"), *more]
    saved(folder / f"encoder_model{suffix}.onnx", inputs, [value(states, F, "b", "s", 4)])


def decoders(folder: Path, *, ids: Any = IDS, mask: Any = (MASK,), present: str = "decoder", more: Axes = []) -> None:  # noqa: B006
    logits = value("logits", F, "b", "s", 9)
    presents = [*cache("present", "decoder", "t"), *cache("present", "encoder", "e")]
    saved(folder / "decoder_model.onnx", [IDS, *mask, HIDDEN], [logits, *presents])
    pasts = [*cache("past_key_values", "decoder", "p"), *cache("past_key_values", "encoder", "e")]
    inputs = [ids, *mask, *pasts, *more]
    saved(folder / "decoder_with_past_model.onnx", inputs, [logits, *cache("present", present, "t")])


def test_the_files_of_a_pair(tmp_path: Path) -> None:
    """Names of optimum and transformers.js, a merged decoder first; nothing without a whole pair."""
    assert bindings.pair_files(str(tmp_path)) is None
    encoder(tmp_path)
    assert bindings.pair_files(str(tmp_path)) is None
    decoders(tmp_path)
    files = bindings.pair_files(str(tmp_path))
    assert files is not None
    assert Path(files[2]).name == "decoder_with_past_model.onnx"
    saved(tmp_path / "decoder_model_merged.onnx", [], [])
    files = bindings.pair_files(str(tmp_path))
    assert files is not None
    assert files[1] == files[2] == str(tmp_path / "decoder_model_merged.onnx")
    inner = tmp_path / "js"
    encoder(inner / "onnx", suffix="_fp16")
    saved(inner / "onnx" / "decoder_model_merged_fp16.onnx", [], [])
    files = bindings.pair_files(str(inner))
    assert files is not None
    assert Path(files[0]).name == "encoder_model_fp16.onnx"
    assert bindings.pair_files(str(tmp_path / "encoder_model.onnx")) is None


def pair_of(folder: Path) -> Any:
    files = bindings.pair_files(str(folder))
    assert files is not None
    return bindings.read_pair(files)


def test_roles_of_two_decoders(tmp_path: Path) -> None:
    """optimum's decoders: the step gets the cross cache that the first pass returned."""
    encoder(tmp_path)
    decoders(tmp_path, ids=value("input_ids", N, "b", 1))
    pair = pair_of(tmp_path)
    assert len(pair.graphs) == len(list(pair.parts)) == 3
    assert set(pair.step.pasts) == set(pair.first.presents)
    assert pair.bindings.kind is bindings.Kind.PAIR
    assert list(bindings.pair_faults(pair)) == []


def test_faults_of_shape(tmp_path: Path) -> None:
    """A fixed batch and a missing mask are named."""
    encoder(tmp_path)
    decoders(tmp_path, ids=value("input_ids", N, 1, 1), mask=())
    made = list(bindings.pair_faults(pair_of(tmp_path)))
    assert "the axis 0 of the input input_ids is fixed at 1" in made
    assert sum("has no input encoder_attention_mask, so it cannot run padded batches" in fault for fault in made) == 2


@pytest.mark.parametrize(
    ("encoded", "decoded", "why"),
    [
        ({}, {"present": "encoder"}, "no graph computes the cache of 0.decoder.key"),
        ({}, {"more": [value("pixel_values", F, "b", 3)]}, "the input pixel_values"),
        ({"states": "hidden"}, {}, "does not compute last_hidden_state from input_ids"),
    ],
)
def test_graphs_that_are_no_pair(tmp_path: Path, encoded: Any, decoded: Any, why: str) -> None:
    """One sentence with the file."""
    encoder(tmp_path, **encoded)
    decoders(tmp_path, **decoded)
    with pytest.raises(UnreadableError, match=why):
        pair_of(tmp_path)


def test_equal_tensors_of_two_graphs_are_one_range(tmp_path: Path) -> None:
    """Equal bytes are stored once, others apart; small tensors stay in the graph; the graphs read back the same."""
    rng = np.random.default_rng(0)
    words, other = rng.normal(size=(128, 16)).astype("f4"), rng.normal(size=(16, 16)).astype("f4")
    graphs = []
    for index, arrays in enumerate(({"a": words, "small": words[0, :4]}, {"b": words.copy(), "c": other})):
        weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        path = saved(tmp_path / f"raw{index}.onnx", [], [], [], weights)
        graphs.append(ir.load(path))
    encoder_decoder.write_data(graphs, tmp_path / "data")
    places = {}
    for index, graph in enumerate(graphs):
        ir.save(graph, tmp_path / f"made{index}.onnx")
        proto = onnx.load(tmp_path / f"made{index}.onnx", load_external_data=False)
        for tensor in proto.graph.initializer:
            places[tensor.name] = {entry.key: entry.value for entry in tensor.external_data}
    assert places["a"] == places["b"]
    assert places["a"]["location"] == "data"
    assert not places["small"]
    assert int(places["c"]["offset"]) % 64 == 0
    assert (tmp_path / "data").stat().st_size < words.nbytes + other.nbytes + 4096
    back = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "made1.onnx").graph.initializer}
    assert np.array_equal(back["b"], words)
    assert np.array_equal(back["c"], other)


def test_merge(tmp_path: Path) -> None:
    """The first pass computes the cross cache, a step takes it; both return it, and the weights are in one graph."""
    past = value("past_key_values.0.encoder.key", F, "b", "e")
    added = op("Add", "past_key_values.0.encoder.key w", "logits"), op("Identity", "logits", "present.0.decoder.key")
    outputs = [value("logits", F, "b", "e"), value("present.0.decoder.key", F, "b", "e")]
    weights = [numpy_helper.from_array(np.float32([1]), "w")]
    step = saved(tmp_path / "step.onnx", [HIDDEN, past], outputs, [*added], weights)
    product = op("Mul", "encoder_hidden_states w", "x")
    summed = op("ReduceSum", "x axis", "present.0.encoder.key", keepdims=0)
    weights = [numpy_helper.from_array(np.float32([3]), "w"), numpy_helper.from_array(np.int64([2]), "axis")]
    outputs = [value("present.0.encoder.key", F, "b", "e")]
    cross = saved(tmp_path / "cross.onnx", [HIDDEN], outputs, [product, summed], weights)
    model = ir.load(step)
    shaped = model.graph.inputs[1]
    shaped.shape = ir.Shape(["b", 1, "e", 1])
    encoder_decoder.merge(model, ir.load(cross))
    shaped.shape = ir.Shape(["b", "p"])
    ir.save(model, tmp_path / "made.onnx")
    session = ort.InferenceSession(tmp_path / "made.onnx", providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_outputs()] == [
        "logits", "present.0.decoder.key", "present.0.encoder.key"
    ]  # fmt: skip
    feeds = {"encoder_hidden_states": np.ones((1, 2, 4), "f4"), past.name: np.zeros((1, 0), "f4")}
    logits, _, kept = session.run(None, feeds | {"use_cache_branch": np.array([False])})
    assert np.array_equal(kept, [[12, 12]])
    assert np.array_equal(logits, [[13, 13]])
    feeds[past.name] = np.float32([[5, 6]])
    logits, _, kept = session.run(None, feeds | {"use_cache_branch": np.array([True])})
    assert np.array_equal(kept, [[5, 6]])
    assert np.array_equal(logits, [[6, 7]])


def test_kind_by_the_class() -> None:
    """A class whose forward pass takes encoder outputs and a cache is two graphs; a quantised export stays one."""

    class Whole:
        def forward(self, input_ids: Any, decoder_input_ids: Any) -> None: ...

    class Parts:
        def forward(self, decoder_input_ids: Any, encoder_outputs: Any, past_key_values: Any) -> None: ...

    assert sample_inputs.encoder_decoder_kind(Whole, one_graph=False) is bindings.Kind.SEQ2SEQ
    assert sample_inputs.encoder_decoder_kind(Parts, one_graph=False) is bindings.Kind.PAIR
    assert sample_inputs.encoder_decoder_kind(Parts, one_graph=True) is bindings.Kind.SEQ2SEQ


def test_other_states_are_refused() -> None:
    """A cache layer without keys and values is named."""
    layers = SimpleNamespace(self_attention_cache=SimpleNamespace(layers=[SimpleNamespace(keys=None)]))
    with pytest.raises(RefusedError, match="the cache layer SimpleNamespace holds other states"):
        encoder_decoder.named(layers, "decoder")


def test_steps_of_an_encoder_decoder() -> None:
    """The encoder's rows have padding on each side, the first tokens are a prompt, and no decoder token is padding."""
    cells = list(batches.stepped(128, bindings.Padding.FRONT, bindings.Kind.PAIR))
    assert {str(cell.layout) for cell in cells} == {"left padding", "right padding", "hole in the mask"}
    assert all(cell.padding and cell.judged == cell.steps == batches.STEPS for cell in cells)
    assert {passes.pieces(cell, bindings.Kind.PAIR) for cell in cells} == {(batches.PROMPT, *[1] * batches.STEPS)}
    config = SimpleNamespace(vocab_size=7, pad_token_id=3)
    batch = batches.make_batch(cells[0], bindings.Kind.PAIR, config, types=False)
    assert batch.ids.shape == (cells[0].batch, cells[0].past)
    assert batch.decoder_ids.shape == (cells[0].batch, cells[0].sequence)
    assert not (batch.decoder_ids == 3).any()


def test_the_first_tokens_are_the_decoders() -> None:
    """`until` leaves the encoder's tokens as they are."""
    batch = Batch(torch.ones(2, 4), torch.ones(2, 4), torch.arange(6).reshape(2, 3), decoder_mask=torch.ones(2, 3))
    first = batch.until(2)
    assert first.ids.shape == (2, 4)
    assert first.decoder_ids.tolist() == [[0, 1], [3, 4]]
    assert first.decoder_mask.shape == (2, 2)


def test_who_shares_the_data_file() -> None:
    """optimum's graphs read one file. The browser loads one for each graph, and the plan says so."""
    shared, apart = (export_layouts.LAYOUTS[name](None, "fp32") for name in ("optimum", "transformers.js"))  # type: ignore[arg-type]
    assert shared.data_of("encoder_model") == shared.data_of("decoder_model_merged")
    assert shared.notes(bindings.Kind.PAIR) == ()
    halves = export_layouts.LAYOUTS["transformers.js"](None, "fp16")  # type: ignore[arg-type]
    assert halves.data_of("encoder_model") == "encoder_model_fp16.onnx_data"
    (note,) = apart.notes(bindings.Kind.PAIR)
    assert note.endswith("so encoder and decoder each store the tied matrix")
    assert apart.notes(bindings.Kind.CACHED) == ()


@pytest.mark.parametrize(("copies", "files", "fails"), [(1, 1, False), (2, 1, True), (2, 2, False), (3, 2, True)])
def test_once_in_each_data_file(copies: int, files: int, fails: bool) -> None:
    """A tied matrix may be stored once in each data file."""
    plan: Any = SimpleNamespace(source="m", tied=(("a", "b"),))
    identity = Identity(1, 1, 1, 1, {}, (), (), (), copies)
    with pytest.raises(VerificationError, match=f"stores a {copies} times") if fails else nullcontext():
        carry_out.check_once(plan, identity, files)
