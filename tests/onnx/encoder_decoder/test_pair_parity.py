"""Export and parity of an encoder-decoder: healthy pairs pass, a fault in either graph is caught."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import tieconv
from tests.cli.run import ok, refused, run
from tests.lazy import carry_out, ort, ort_quantization, torch, transformers
from tests.onnx import faults
from tests.onnx.encoder_decoder.conftest import Pairs
from tests.onnx.encoder_decoder.stored_pair import stored_pair
from tests.onnx.nodes import editing, op
from tests.onnx.planted.edit import rename
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Parity, Verdict

GRAPHS = ("encoder_model.onnx", "decoder_model_merged.onnx")
SIDES = [f"{layer}.{side}.{part}" for layer in (0, 1) for side in ("decoder", "encoder") for part in ("key", "value")]


def sessions(folder: Path) -> list[ort.InferenceSession]:
    """Of the encoder and of the decoder."""
    return [ort.InferenceSession(folder / name, providers=["CPUExecutionProvider"]) for name in GRAPHS]


def ranges(graph: Path, name: str) -> tuple[str, str, str]:
    """The data file, the offset and the length of an initializer."""
    model = onnx.load(graph, load_external_data=False)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name.endswith(name)]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], entries["offset"], entries["length"]


def test_two_graphs_and_one_data_file(pairs: Pairs) -> None:
    """The encoder, and one decoder for the first tokens and for later steps; both read one byte range for words."""
    made = pairs("t5")
    written = {path.name for path in made.graph.iterdir()}
    assert written == {*GRAPHS, "model.onnx.data", "config.json", "generation_config.json", "export.json"}
    encoder, decoder = sessions(made.graph)
    assert [entry.name for entry in encoder.get_inputs()] == ["input_ids", "attention_mask"]
    assert [entry.name for entry in encoder.get_outputs()] == ["last_hidden_state"]
    assert [entry.name for entry in decoder.get_inputs()] == [
        "input_ids", "encoder_attention_mask", "encoder_hidden_states",
        *(f"past_key_values.{side}" for side in SIDES), "use_cache_branch",
    ]  # fmt: skip
    assert [entry.name for entry in decoder.get_outputs()] == ["logits", *(f"present.{side}" for side in SIDES)]
    places = {
        ranges(made.graph / GRAPHS[0], "encoder.embed_tokens.weight"),
        ranges(made.graph / GRAPHS[1], "lm_head.weight"),
    }
    assert len(places) == 1
    assert places.pop()[0] == "model.onnx.data"


def test_export_json_names_each_graph(pairs: Pairs) -> None:
    """The document lists the inputs of both graphs, the bytes of all files, and that the words are stored once."""
    document = json.loads((pairs("t5").graph / "export.json").read_text())
    section = document["tieconv"]
    assert section["kind"] == "encoder-decoder with cache"
    assert {entry["graph"] for entry in section["inputs"]} == set(GRAPHS)
    assert {entry["graph"] for entry in section["outputs"]} == set(GRAPHS)
    assert set(section["files"]) == {*GRAPHS, "model.onnx.data"}
    assert section["weights"]["embedding_stored"] == 1
    assert section["weights"]["found"] == section["weights"]["tensors"]
    assert "components" not in document


def test_the_past_changes_nothing(pairs: Pairs) -> None:
    """The graphs give torch's logits for a padded batch, first in one pass and then token by token."""
    made = pairs("t5")
    model = transformers.T5ForConditionalGeneration.from_pretrained(made.model).eval()
    ids = torch.randint(3, 1000, (3, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 3:] = 0
    tokens = torch.randint(3, 1000, (3, 5), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = model(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens).logits
    encoder, decoder = sessions(made.graph)
    (hidden,) = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    feeds: dict[str, Any] = {"encoder_attention_mask": mask.numpy(), "encoder_hidden_states": hidden}
    feeds |= {f"past_key_values.{side}": torch.zeros(3, 4, 0, 8).numpy() for side in SIDES}
    logits = []
    for start, end in ((0, 2), (2, 4), (4, 5)):
        feeds |= {"input_ids": tokens[:, start:end].numpy(), "use_cache_branch": torch.tensor([start > 0]).numpy()}
        made_logits, *presents = decoder.run(None, feeds)
        feeds |= {f"past_key_values.{side}": value for side, value in zip(SIDES, presents, strict=True)}
        logits.append(torch.from_numpy(made_logits))
    torch.testing.assert_close(torch.cat(logits, 1), want, rtol=1e-4, atol=1e-4)


FILES = {
    "optimum": {*GRAPHS, "model.onnx_data"},
    "transformers.js": {f"onnx/{name}{end}" for name in GRAPHS for end in ("", "_data")},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", FILES)
def test_layouts(pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """optimum gets one data file, transformers.js one a graph; parity measures the set as one model."""
    made = pairs("t5")
    monkeypatch.setattr(carry_out, "trace_pair", stored_pair(made.graph))
    out = tmp_path / "out"
    result = tieconv.export(made.model, out, layout=layout, provider="cpu")
    assert set(result.files) == FILES[layout]
    assert all((out / name).is_file() for name in FILES[layout])
    assert result.parity is not None
    assert result.parity.verdict is Verdict.PASSED
    assert result.parity.structure is not None
    assert result.parity.structure.kind == "encoder-decoder with cache"
    if layout == "transformers.js":
        settings = json.loads((out / "config.json").read_text())["transformers.js_config"]
        assert settings["use_external_data_format"] == dict.fromkeys(GRAPHS, 1)
        session = ort.InferenceSession(out / "onnx" / GRAPHS[1], providers=["CPUExecutionProvider"])
        caches = [entry.shape for entry in session.get_inputs() if entry.name.startswith("past_key_values.")]
        # transformers.js makes the empty caches with these axes, and knows only the name batch_size.
        assert {(shape[0], shape[1], shape[3]) for shape in caches} == {("batch_size", 4, 8)}
    assert ok("parity", out, made.model, "--provider", "cpu").exit_code == 0


def test_genai_refuses(models: Path) -> None:
    """onnxruntime-genai loads no such pair: the sentence names the class and the kind."""
    sentence = refused("export --layout genai", models / "t5")
    assert "T5ForConditionalGeneration: the layout genai does not support this kind of graph" in sentence
    assert "(encoder-decoder with cache)" in sentence


@pytest.mark.parametrize("parity", fast_only([False, True], [False]))
def test_a_cache_of_another_width(pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parity: bool) -> None:
    """optimum feeds an empty cache of hidden size / heads: a graph with another width leaves it open."""
    made = pairs("t5")
    source = shutil.copytree(made.model, tmp_path / "model")
    monkeypatch.setattr(carry_out, "trace_pair", stored_pair(made.graph))
    monkeypatch.setattr("tieconv.onnx.export.layouts.Optimum.cache_shape", lambda *_: (4, 9))
    result = tieconv.export(source, tmp_path / "out", layout="optimum", provider="cpu", parity=parity)
    assert result.executed and (result.parity is not None) == parity
    session = ort.InferenceSession(tmp_path / "out" / GRAPHS[1], providers=["CPUExecutionProvider"])
    shapes = [entry.shape for entry in session.get_inputs() if entry.name.startswith("past_key_values.")]
    assert {(shape[1], shape[3]) for shape in shapes} == {("heads", "width")}


def test_other_verbs(pairs: Pairs, tmp_path: Path) -> None:
    """`inspect`, `check` and `dedup` work on the directory: nothing is stored twice."""
    made = pairs("t5")
    assert ok("inspect", made.graph).exit_code == 0
    assert ok("check", made.graph).exit_code == 0
    plan = json.loads(ok("dedup --json", made.graph, "-o", tmp_path / "out").stdout)
    assert plan["executed"]
    size = sum(path.stat().st_size for path in made.graph.glob("*.data"))
    assert sum(path.stat().st_size for path in (tmp_path / "out").glob("*.data")) == size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "mt5", "m2m100", "marian"])
def test_families(tmp_path: Path, name: str) -> None:
    """Further classes export and pass parity."""
    from tests.onnx.layouts.measure import make

    make(name).save_pretrained(tmp_path / "model")
    result = tieconv.export(tmp_path / "model", tmp_path / "out", provider="cpu")
    assert result.parity is not None
    assert result.parity.verdict is Verdict.PASSED
    assert result.parity.identity is not None
    assert result.parity.identity.copies == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "provider"), [("t5", "cpu"), ("bart", "cuda"), ("whisper", "cuda")])
def test_fused_operators(tmp_path: Path, name: str, provider: str) -> None:
    """Both graphs are fused, parity passes, the head reads the embedding's matrix, and a session holds it once."""
    from tests.onnx.export_table import optimised
    from tests.onnx.layouts.measure import make

    model = make(name)
    model.save_pretrained(tmp_path / "model")
    result = tieconv.export(tmp_path / "model", tmp_path / "out", fuse=provider, provider="cpu")
    assert result.parity is not None
    assert result.parity.verdict is Verdict.PASSED
    for name_of_file in GRAPHS:
        graph = onnx.load(tmp_path / "out" / name_of_file, load_external_data=False).graph
        assert any(node.domain == "com.microsoft" for node in graph.node), name_of_file
    (words,) = [tensor.name for tensor in graph.initializer if list(tensor.dims) == [1021, 32]]
    (head,) = [node for node in graph.node if node.op_type != "Gather" and words in node.input]
    assert head.op_type == "FusedMatMul"
    assert optimised(tmp_path / "out" / GRAPHS[1], model.get_input_embeddings().weight.detach().numpy()) == 1


DECODER, ENCODER = "decoder_model_merged.onnx", "encoder_model.onnx"
STEPS = {"steps_rms_ratio", "steps_max_ratio"}
SINGLE = {"rms_ratio", "max_ratio"}
Fault = Callable[[ModelProto], None]


def branch(model: ModelProto, name: str) -> onnx.GraphProto:
    """A branch of the decoder's `If`."""
    node = next(node for node in model.graph.node if node.op_type == "If")
    return next(attribute.g for attribute in node.attribute if attribute.name == name)


def swapped_layers(model: ModelProto) -> None:
    """A step reads the keys of the encoder's tokens of the other layer."""
    nodes = {node.input[0]: node for node in branch(model, "then_branch").node}
    first, second = (nodes[f"past_key_values.{layer}.encoder.key"] for layer in (0, 1))
    first.input[0], second.input[0] = second.input[0], first.input[0]


def stale(model: ModelProto) -> None:
    """The first pass returns the cross-attention's keys of the rows in another order, but uses the right ones."""
    turn(model, "present.0.encoder.key")


def stale_after_a_step(model: ModelProto) -> None:
    """A step returns a cross-attention cache that differs from what it got."""
    graph = branch(model, "then_branch")
    (node,) = [node for node in graph.node if node.input[0] == "past_key_values.1.encoder.value"]
    node.op_type = "Neg"


def turn(model: ModelProto, output: str) -> None:
    """Give the output in the reverse order of rows."""
    for value in model.graph.output:
        if value.name == output:
            value.name = "turned"
    model.graph.node.append(turned(model, output, "turned"))
    rename(model, output, "inner")
    for value in model.graph.output:
        if value.name == "turned":
            value.name = output
    model.graph.node[-1].output[0] = output


def turned(model: ModelProto, name: str, to: str) -> onnx.NodeProto:
    for index, number in enumerate((-1, -(2**31), 0, -1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([number], np.int64), f"{to}_{index}"))
    return helper.make_node("Slice", [name, *(f"{to}_{index}" for index in range(4))], [to])


def another_row(model: ModelProto) -> None:
    """The self-attention reads the cache of another row."""
    name = "past_key_values.0.decoder.key"
    rename(model, name, "of_another_row")
    model.graph.node.insert(0, turned(model, name, "of_another_row"))


def step_without_mask(model: ModelProto) -> None:
    """A step reads ones instead of the mask of the encoder's tokens."""
    rename(model, "encoder_attention_mask", "used_mask")
    one = helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    for node in (
        op("Where", "use_cache_branch all_ones encoder_attention_mask", "used_mask"),
        op("ConstantOfShape", "mask_shape", "all_ones", value=one),
        op("Shape", "encoder_attention_mask", "mask_shape"),
    ):
        model.graph.node.insert(0, node)


def weight(model: ModelProto) -> None:
    """One number of a matrix differs."""
    tensor = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2 and tensor.dims[0] == 1021)
    with editing(tensor) as values:
        values[7, 3] += 0.5


FAULTS: dict[str, tuple[str, Fault, set[str]]] = {
    "cross cache of another layer": (DECODER, swapped_layers, STEPS),
    "first pass returns another row's cross cache": (DECODER, stale, STEPS),
    "step returns another cross cache": (DECODER, stale_after_a_step, STEPS),
    "self cache of another row": (DECODER, another_row, STEPS),
    "step ignores the encoder's padding": (DECODER, step_without_mask, STEPS),
    "encoder ignores its padding": (ENCODER, faults.mask_dropped, SINGLE | STEPS),
    "one weight of the encoder": (ENCODER, weight, {"graph_weights", "token_lookup"}),
}


def planted(made: Path, file: str, fault: Fault, to: Path) -> Path:
    shutil.copytree(made, to)
    faults.plant(made / file, fault, to / file)
    return to


def failed(report: Parity) -> set[str]:
    return {gate.name for gate in report.gates if not gate.passed}


@pytest.mark.slow
def test_a_healthy_pair_passes(pairs: Pairs) -> None:
    """One report for both graphs: weights, single passes, steps over padding of every kind, free runs, every id."""
    made = pairs("t5")
    report = tieconv.parity(made.graph, made.model, provider="cpu")
    assert report.verdict is Verdict.PASSED, failed(report)
    assert report.identity is not None
    assert (report.identity.copies, report.identity.found) == (1, report.identity.tensors)
    stepped = [case for case in report.cases if case.group == "cached steps"]
    assert len(stepped) >= 6
    assert {case.batch for case in stepped} >= {2, 3}
    assert all(case.padding for case in stepped)
    assert report.metrics is not None
    assert {gate.name for gate in report.gates} >= {*STEPS, *SINGLE, "token_lookup", "weights", "graph_weights"}
    assert report.structure is not None
    assert "encoder_model.onnx: input_ids" in report.structure.inputs


@pytest.mark.slow
@pytest.mark.parametrize("name", fast_only(FAULTS, ["step ignores the encoder's padding"]))
def test_faults(pairs: Pairs, tmp_path: Path, name: str) -> None:
    """Each fault fails by the gates meant for it. One in a step leaves the single passes right."""
    file, fault, gates = FAULTS[name]
    made = pairs("t5")
    report = tieconv.parity(planted(made.graph, file, fault, tmp_path / "out"), made.model, provider="cpu")
    assert report.verdict is Verdict.FAILED
    assert failed(report) & gates == gates, failed(report)
    if gates == STEPS:
        assert not failed(report) & SINGLE


def test_a_quantised_pair_is_refused(pairs: Pairs) -> None:
    """`--quantised` takes one graph."""
    made = pairs("t5")
    sentence = refused("parity --quantised", made.graph, made.model)
    assert "--quantised measures one graph, not an encoder and a decoder" in sentence
    hint = run("parity --quantised", made.graph, made.model).stderr.splitlines()[1]
    assert f"tieconv parity {made.graph} {made.model}" in hint
    assert f"tieconv export {made.model} -o OUT --quantise int8" in hint


@pytest.mark.parametrize("file", [ENCODER, DECODER])
def test_a_pair_that_was_quantised_is_refused(pairs: Pairs, tmp_path: Path, file: str) -> None:
    """Without `--quantised` the sentence says what is quantised, and the hint does not lead back to it."""
    made = pairs("t5")
    out = shutil.copytree(made.graph, tmp_path / "out")
    logging.disable(logging.WARNING)
    try:
        ort_quantization.quantize_dynamic(str(made.graph / file), str(out / file))
    finally:
        logging.disable(logging.NOTSET)
    sentence = refused("parity", out, made.model)
    assert "parity cannot measure" in sentence
    hint = run("parity", out, made.model).stderr.splitlines()[1]
    assert hint.startswith("hint: give the pair before quantization")
    assert "--quantised" not in hint


def test_half_a_pair_is_not_measured(pairs: Pairs, tmp_path: Path) -> None:
    """A decoder alone is no model: the hint says to give the directory."""
    made = pairs("t5")
    report = tieconv.parity(made.graph / DECODER, made.model, provider="cpu")
    assert report.verdict is Verdict.NOT_RUN
    assert "tieconv parity DIR MODEL" in (report.hint or "")
