"""An encoder of sound or images: its export, its parity, and faults planted into a Whisper pair."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import tieconv
from tests.cli.run import refused
from tests.lazy import batches, bindings, export_plan, torch, transformers
from tests.onnx.encoder_decoder.conftest import Pairs
from tests.onnx.encoder_decoder.test_pair_parity import (
    DECODER,
    ENCODER,
    SINGLE,
    STEPS,
    another_row,
    failed,
    planted,
    ranges,
    sessions,
    stale,
    stale_after_a_step,
    swapped_layers,
)
from tests.onnx.nodes import editing, op
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Parity, Verdict
from tieconv.reference.model import Batch, EncoderInput, Features, encoder_input, load

Fault = Callable[[ModelProto], None]
BINS, FRAMES = 8, 40  # `num_mel_bins`, and `max_source_positions` = 20 times the stride of two convolutions
ENTRIES = {"token_lookup", "weights"}


def test_the_graphs_of_whisper(pairs: Pairs) -> None:
    """The names are those of optimum, the frames are fixed, and both names of the words are one byte range."""
    made = pairs("whisper")
    encoder, decoder = sessions(made.graph)
    assert [(entry.name, entry.shape) for entry in encoder.get_inputs()] == [
        ("input_features", ["batch", BINS, FRAMES])
    ]
    assert [entry.name for entry in encoder.get_outputs()] == ["last_hidden_state"]
    inputs = [entry.name for entry in decoder.get_inputs()]
    assert inputs[:2] == ["input_ids", "encoder_hidden_states"]
    assert inputs[-1] == "use_cache_branch"
    assert all(name.startswith("past_key_values.") for name in inputs[2:-1])
    assert len(inputs[2:-1]) == 8
    graph = onnx.load(made.graph / DECODER, load_external_data=False).graph
    words = [tensor.name for tensor in graph.initializer if list(tensor.dims) == [1021, 32]]
    assert words == ["model.proj_out.weight"]
    assert ranges(made.graph / DECODER, "proj_out.weight")[0] == "model.onnx.data"
    section = json.loads((made.graph / "export.json").read_text())["tieconv"]
    assert section["weights"]["embedding_stored"] == 1
    assert {"proved": True, "why_not": "", "copies": {"model.proj_out.weight": 1}} in section["session"]


def test_whisper_generates(pairs: Pairs) -> None:
    """With the cache of both attentions, the graphs give torch's logits of random features."""
    made = pairs("whisper")
    model = transformers.WhisperForConditionalGeneration.from_pretrained(made.model).eval()
    features = torch.randn(2, BINS, FRAMES, generator=torch.Generator().manual_seed(3))
    tokens = torch.randint(3, 1000, (2, 4), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        want = model(input_features=features, decoder_input_ids=tokens).logits
    encoder, decoder = sessions(made.graph)
    feeds = {"encoder_hidden_states": encoder.run(None, {"input_features": features.numpy()})[0]}
    pasts = [entry.name for entry in decoder.get_inputs() if entry.name.startswith("past_key_values.")]
    presents = [name.replace("past_key_values", "present") for name in pasts]
    feeds |= {name: np.zeros((2, 4, 0, 8), "f4") for name in pasts}
    logits = []
    for start, end in ((0, 2), (2, 3), (3, 4)):
        feeds |= {"input_ids": tokens[:, start:end].numpy(), "use_cache_branch": np.array([start > 0])}
        made_logits, *caches = decoder.run(["logits", *presents], feeds)
        feeds |= dict(zip(pasts, caches, strict=True))
        logits.append(torch.from_numpy(made_logits))
    torch.testing.assert_close(torch.cat(logits, 1), want, rtol=1e-3, atol=1e-3)


def matrices(model: ModelProto, *shape: int) -> Iterator[onnx.TensorProto]:
    """The weights of this shape."""
    return (tensor for tensor in model.graph.initializer if list(tensor.dims) == list(shape))


def convolution(model: ModelProto) -> None:
    """One number of the encoder's first convolution differs."""
    with editing(next(matrices(model, 32, BINS, 3))) as values:
        values[5, 2, 1] += 0.5


def reversed_kernel(model: ModelProto) -> None:
    """The encoder's first convolution reads the frames in the reverse order of its kernel."""
    with editing(next(matrices(model, 32, BINS, 3))) as values:
        values[:] = values[:, :, ::-1].copy()


def frame_positions(model: ModelProto) -> None:
    """Two positions of the encoder are exchanged."""
    with editing(next(matrices(model, 20, 32))) as values:
        values[[3, 4]] = values[[4, 3]]


def head_row(model: ModelProto) -> None:
    """The embedding and the head have another row for one word that no random batch need contain."""
    with editing(next(matrices(model, 1021, 32))) as values:
        values[777] *= -1


def first_positions(model: ModelProto) -> None:
    """Each step reads the decoder's position 0, as if it had no past."""
    (table,) = matrices(model, 128, 32)
    (lookup,) = [
        node for node in model.graph.node if node.op_type in ("Gather", "GatherND") and node.input[0] == table.name
    ]
    place = list(model.graph.node).index(lookup)
    for node in (
        op("Mul", f"{lookup.input[1]} not_a_step", "places"),
        op("Cast", "first", "not_a_step", to=onnx.TensorProto.INT64),
        op("Not", "use_cache_branch", "first"),
    ):
        model.graph.node.insert(place, node)
    lookup.input[1] = "places"


FAULTS: dict[str, tuple[str, Fault, set[str]]] = {
    "cross cache of another layer": (DECODER, swapped_layers, STEPS),
    "first pass returns another row's cross cache": (DECODER, stale, STEPS),
    "step returns another cross cache": (DECODER, stale_after_a_step, STEPS),
    "self cache of another row": (DECODER, another_row, STEPS),
    "positions of a step begin at 0": (DECODER, first_positions, STEPS),
    "one number of the convolution": (ENCODER, convolution, {"weights", *SINGLE}),
    "reversed convolution": (ENCODER, reversed_kernel, {"weights", *SINGLE}),
    "two frames' positions exchanged": (ENCODER, frame_positions, {"weights", *SINGLE}),
    "one row of the head": (DECODER, head_row, ENTRIES),
}


@pytest.fixture(scope="module")
def report(pairs: Pairs) -> Parity:
    made = pairs("whisper")
    return tieconv.parity(made.graph, made.model, provider="cpu")


def test_a_healthy_whisper_passes(report: Parity) -> None:
    """Encoder, first tokens, steps and every id; the matrix is stored once; free runs are torch's."""
    assert report.verdict is Verdict.PASSED, failed(report)
    assert report.identity is not None
    assert (report.identity.copies, report.identity.found) == (1, report.identity.tensors)
    assert {case.group for case in report.cases} == {"no past", "one token", "every token", "cached steps"}
    assert {case.batch for case in report.cases} >= {1, 2, 3, 4, 6}
    assert len({case.seed for case in report.cases if case.group == "cached steps"}) == 3
    assert report.metrics is not None
    assert report.metrics.vocabulary is not None
    assert report.metrics.vocabulary.ids == 1021
    assert {gate.name for gate in report.gates} >= {*STEPS, *SINGLE, *ENTRIES, "graph_weights"}


@pytest.mark.slow
@pytest.mark.parametrize("name", fast_only(FAULTS, ["reversed convolution"]))
def test_faults(pairs: Pairs, tmp_path: Path, name: str) -> None:
    """Each fault fails by the gates meant for it. One in a step leaves the single passes right."""
    file, fault, gates = FAULTS[name]
    made = pairs("whisper")
    found = tieconv.parity(planted(made.graph, file, fault, tmp_path / "out"), made.model, provider="cpu")
    assert found.verdict is Verdict.FAILED
    assert failed(found) & gates == gates, failed(found)
    if gates == STEPS:
        assert not failed(found) & SINGLE


@pytest.mark.slow
def test_frames_come_from_the_graph_or_the_config(pairs: Pairs, tmp_path: Path) -> None:
    """A graph that leaves bins and frames open, as optimum's, is fed those of the config."""
    made = pairs("whisper")
    out = shutil.copytree(made.graph, tmp_path / "out")
    model = onnx.load(out / ENCODER, load_external_data=False)
    for side in model.graph.input[0].type.tensor_type.shape.dim[1:]:
        side.dim_param = "open"
    onnx.save(model, out / ENCODER)
    opened = tieconv.parity(out, made.model, provider="cpu")
    assert opened.verdict is Verdict.PASSED, failed(opened)


def test_a_fixed_batch_is_a_fault(pairs: Pairs, tmp_path: Path) -> None:
    """An encoder for two rows does not run at every shape."""
    made = pairs("whisper")
    out = shutil.copytree(made.graph, tmp_path / "out")
    model = onnx.load(out / ENCODER, load_external_data=False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, out / ENCODER)
    found = tieconv.parity(out, made.model, provider="cpu")
    assert failed(found) == {"structure"}
    assert "the batch axis (0) of the input input_features is fixed at 2" in found.gates[0].sentence


def test_own_inputs_are_token_ids(pairs: Pairs, tmp_path: Path) -> None:
    """`--inputs` cannot feed features: the sentence says what the encoder reads."""
    made = pairs("whisper")
    np.savez(tmp_path / "mine.npz", input_features=np.zeros((1, BINS, FRAMES), "f4"))
    sentence = refused("parity --inputs", tmp_path / "mine.npz", made.graph, made.model)
    assert "--inputs takes token ids, but the encoder reads input_features" in sentence


def test_quantise_takes_ids(pairs: Pairs) -> None:
    """A quantised export has one graph of token ids."""
    sentence = refused("export --quantise int8", pairs("whisper").model)
    assert "WhisperForConditionalGeneration reads input_features" in sentence
    assert "--quantise supports only encoder-decoders of token ids" in sentence


def test_the_plan_lists_the_features(pairs: Pairs) -> None:
    """The plan has the shape that the config fixes, and no mask."""
    plan = tieconv.plan_export(pairs("whisper").model).plan
    assert plan.inputs[0] == f"encoder: input_features [batch, {BINS}, {FRAMES}]"
    assert not any("attention_mask" in line for line in plan.inputs)


UNKNOWN = {
    "Speech2TextForConditionalGeneration": "input_features", "MoonshineForConditionalGeneration": "input_values",
    "Pix2StructForConditionalGeneration": "flattened_patches", "SpeechT5ForSpeechToText": "input_values",
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_encoders_without_a_shape(tmp_path: Path, name: str) -> None:
    """Where the config fixes no shape, the refusal names the class and its input. The config alone says so."""
    cls = getattr(transformers, name)
    cls.config_class().save_pretrained(tmp_path)
    with pytest.raises(tieconv.TieconvError) as caught:
        export_plan.pair_inputs(name, str(tmp_path))
    why = f"{name} reads {UNKNOWN[name]}, and its config does not fix their shape, as export needs"
    assert caught.value.message == why


def test_features_of_a_batch() -> None:
    """Cells of one seed and size share one object, rows differ, and rows beyond the third repeat."""
    reads = EncoderInput("input_features", (4, 6))
    cell = batches.without_tokens(batches.Cell(5, 3, 7, 2, 1, layout=batches.Layout.RIGHT))
    assert (cell.past, cell.padding) == (0, 0)
    config = transformers.WhisperConfig(vocab_size=50, pad_token_id=0)
    batch = batches.make_batch(cell, bindings.Kind.PAIR, config, types=False)
    assert batch.ids.shape == (5, 0)
    features = batches.with_features(batch, cell, reads).features
    assert features is not None
    assert features is batches.with_features(batch, cell, reads).features
    assert features.values.shape == (3, 4, 6)
    assert not torch.equal(features.values[0], features.values[1])
    states = torch.arange(3)[:, None]
    assert features.for_rows(states, 5)[:, 0].tolist() == [0, 1, 2, 0, 1]


def test_the_reference_encodes_once(pairs: Pairs) -> None:
    """Logits of features are those of the class's own forward pass; its encoder runs once for one object."""
    made = pairs("whisper")
    config = json.loads((made.model / "config.json").read_text())
    reference = load(str(made.model), config, "float32")
    features = Features("input_features", torch.randn(2, BINS, FRAMES))
    calls: list[int] = []
    reference.model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]])
    batch = Batch(tokens[:, :0], tokens[:, :0], tokens, features=features)
    first = reference.logits(batch)
    reference.logits(batch)
    assert len(calls) == 1
    with torch.no_grad():
        want = reference.model(input_features=features.values, decoder_input_ids=tokens).logits
    torch.testing.assert_close(first, want)


def test_shapes_of_encoders() -> None:
    """Mel bins and frames, or channels and sides, by the attributes of the encoder's config."""
    from tests.onnx.layouts.families import FAMILIES

    assert encoder_input(FAMILIES["whisper"]()) == EncoderInput("input_features", (BINS, FRAMES))
    assert encoder_input(FAMILIES["trocr"]()) == EncoderInput("pixel_values", (3, 16, 16))
    assert encoder_input(FAMILIES["donut"]()) == EncoderInput("pixel_values", (3, 32, 32))
    assert encoder_input(FAMILIES["t5"]()) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trocr", "vit-gpt2"])
def test_encoders_of_images(pairs: Pairs, name: str) -> None:
    """Their pair passes parity. The pooler, on which no logit depends, is not part of it."""
    made = pairs(name)
    found = tieconv.parity(made.graph, made.model, provider="cpu")
    assert found.verdict is Verdict.PASSED, failed(found)
    assert found.identity is not None
    assert set(found.identity.unused) == {"encoder.pooler.dense.weight", "encoder.pooler.dense.bias"}
    assert found.identity.copies == 1
