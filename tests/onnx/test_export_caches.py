"""Caches of an export: sliding windows keep their length; a cache of anything but keys and values is refused."""

from __future__ import annotations

import copy
import re
import subprocess
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tieconv
from tests.cli.run import refused, run
from tests.lazy import (
    adapter,
    adapter as export_adapter,
    carry_out as export_run,
    export_plan,
    ir,
    ort,
    sample_inputs,
    torch,
    transformers,
)
from tests.onnx import exported
from tests.onnx.exported import CACHE, ROWS
from tests.onnx.layouts.families import FAMILIES
from tests.oracles.environments import TORCH, Environment, make
from tests.refusals import failure_of
from tieconv.reference.model import cache_argument, cache_in

ROOT = Path(__file__).parents[2]
WINDOW = 8
LENGTH = "past_key_values.layers.{}._sliding_window_tensor"


def scalar(name: str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))


def cache_of(*windows: int | None) -> Any:
    layers = [types.SimpleNamespace(keys=None) for _ in windows]
    for layer, window in zip(layers, windows, strict=True):
        if window is not None:
            layer._sliding_window_tensor = torch.tensor(window)
    return types.SimpleNamespace(layers=layers)


def test_a_length_becomes_a_constant(tmp_path: Path) -> None:
    """Each layer computes with its own window, and the outputs that repeat a length are gone."""
    ids = scalar("input_ids")
    lengths = [scalar("input." + LENGTH.format(layer)) for layer in (0, 2)]
    sums = [ir.node("Add", [ids, length]) for length in lengths]
    last = ir.node("Sub", [sums[0].outputs[0], sums[1].outputs[0]])
    repeats = [ir.node("Identity", [length]) for length in lengths]
    for node, layer in zip(repeats, (0, 2), strict=True):
        node.outputs[0].name = "output." + LENGTH.format(layer)
    last.outputs[0].name = "logits"
    nodes = [*sums, last, *repeats]
    for node in nodes:
        node.outputs[0].shape, node.outputs[0].type = ir.Shape([]), ir.TensorType(ir.DataType.INT64)
    outputs = [repeats[0].outputs[0], last.outputs[0], repeats[1].outputs[0]]
    graph = ir.Graph([ids, *lengths], outputs, nodes=nodes, opset_imports={"": 20}, name="g")
    model = ir.Model(graph, ir_version=10)

    assert adapter.fold_windows(model, cache_of(16, None, 4)) == {0: 16, 2: 4}
    assert [value.name for value in graph.inputs] == ["input_ids"]
    assert [value.name for value in graph.outputs] == ["logits"]
    ir.save(model, tmp_path / "g.onnx")
    session = ort.InferenceSession(tmp_path / "g.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"input_ids": np.array(5)})[0] == 12


def test_a_graph_without_windows_is_unchanged() -> None:
    """A cache without windows, and a model without a cache, leave the graph as it is."""
    for cache in (cache_of(None, None), None):
        ids = scalar("input_ids")
        unused = ir.node("Identity", [ids])
        model = ir.Model(ir.Graph([ids], [ids], nodes=[unused], opset_imports={"": 20}), ir_version=10)
        assert adapter.fold_windows(model, cache) == {}
        assert len(model.graph) == 1


def test_the_cache_of_transformers_5_24(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph has the cache that the plan promises, and parity measures steps with it."""

    @dataclass
    class Output(transformers.utils.ModelOutput):  # type: ignore[misc]
        logits: Any = None
        cache: Any = None

    class Renamed(transformers.LlamaForCausalLM):  # type: ignore[misc]
        """A Llama with the names of transformers 5.24, in which `past_key_values` is `cache`."""

        def forward(
            self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, cache: Any = None,
            use_cache: bool | None = None,
        ) -> Output:  # fmt: skip
            made = super().forward(input_ids, attention_mask, position_ids, cache, use_cache=use_cache)
            return Output(made.logits, made.past_key_values)

    exported.make("llama").save_pretrained(tmp_path / "model")
    monkeypatch.setattr("transformers.LlamaForCausalLM", Renamed)
    plan = tieconv.plan_export(tmp_path / "model", provider="cpu")
    assert plan.plan.inputs[-1] == "cache [batch, heads, past, width] of each layer"
    outcome = plan.execute(tmp_path / "out")
    assert outcome.parity is not None
    assert outcome.parity.verdict == "passed"
    assert any(case.past for case in outcome.parity.cases)
    inputs = {value.name: value.shape for value in ir.load(tmp_path / "out" / "model.onnx").graph.inputs}
    caches = [f"input.cache.layers.{layer}.{part}" for layer in range(2) for part in ("keys", "values")]
    assert [*inputs] == ["input_ids", "attention_mask", "position_ids", *caches]
    assert [str(side) for side in inputs["attention_mask"] or ()] == ["batch", "past_sequence + sequence"]
    assert {str((inputs[name] or ())[2]) for name in caches} == {"past_sequence"}


@pytest.mark.slow
def test_the_exporter_of_transformers_5_24(tmp_path: Path) -> None:
    """The release itself, with a decoder and an encoder-decoder: each graph has a cache, and parity passes."""
    packages = (TORCH, "transformers==5.24.0", "onnx==1.23.2", "onnx-ir==1.1.0", "onnxruntime==1.32.0")
    python = make(Environment("transformers", (*packages, "onnxscript==0.7.2", "click")), tmp_path / "environment")
    for name, graph in (("llama-tied", "model.onnx"), ("bart", "decoder_model_merged.onnx")):
        words = [python, "-m", "tieconv", "export", ROOT / "fixtures" / "models" / name, "-o", tmp_path / name]
        ended = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert "parity passed" in ended.stdout
        inputs = [str(value.name) for value in ir.load(tmp_path / name / graph).graph.inputs]
        assert sum("cache" in entry or "past_key_values" in entry for entry in inputs) >= 4, inputs


def test_a_class_without_a_cache(tmp_path: Path) -> None:
    """The plan of a GPT promises no cache, and names the positions that its graph reads."""
    config = transformers.OpenAIGPTConfig(vocab_size=ROWS, n_embd=32, n_layer=1, n_head=4, n_positions=32)
    transformers.OpenAIGPTLMHeadModel(config).save_pretrained(tmp_path)
    plan = tieconv.plan_export(tmp_path)
    assert plan.plan.kind == "decoder without cache"
    assert plan.plan.inputs == tuple(
        f"{name} [batch, sequence]" for name in ("input_ids", "attention_mask", "position_ids")
    )


def _slow(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma2", _slow("mistral"), _slow("gemma3"), _slow("gpt-oss")])
def test_prompts_longer_than_the_window(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph has the usual inputs; prompt and later steps agree with torch far behind the window."""
    monkeypatch.setattr(exported, "MODELS", FAMILIES)
    model = exported.make(name)
    assert model.config.sliding_window in (WINDOW, 2 * WINDOW)
    model.save_pretrained(tmp_path / "model")
    result = run("export --provider cpu", tmp_path / "model", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    session = ort.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    caches = [entry.name for entry in session.get_inputs() if entry.name.startswith(f"input.{CACHE}.layers.")]
    assert {entry.name for entry in session.get_inputs()} == {
        "input_ids", "attention_mask", "position_ids", *caches,
    }  # fmt: skip
    assert all(name.endswith((".keys", ".values")) for name in caches)
    assert [entry.name for entry in session.get_outputs()] == [
        "logits", *(name.replace("input.", "output.") for name in caches),
    ]  # fmt: skip

    ids = torch.randint(0, ROWS, (2, 6 * WINDOW), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits.numpy()
        ignored = without_window(model)(input_ids=ids).logits.numpy()
    assert np.abs(ignored - wanted)[:, 2 * WINDOW :].max() > 0.1 * np.abs(wanted).max()  # the comparison sees a window
    got = stepped(session, ids.numpy(), (5 * WINDOW, 1, 3, 1), caches)
    assert np.abs(got - wanted[:, : got.shape[1]]).max() < 1e-4 * np.abs(wanted).max()


def without_window(model: Any) -> Any:
    """The same weights, and a window longer than any prompt."""
    config = copy.deepcopy(model.config)
    config.sliding_window = 1000
    wide = type(model)(config).eval()
    wide.load_state_dict(model.state_dict())
    return wide


def stepped(session: Any, ids: Any, pieces: tuple[int, ...], caches: list[str]) -> Any:
    """The logits of a prompt and of pieces after it, each with the cache of the one before."""
    past = {name: np.zeros((2, 2, 0, 8), np.float32) for name in caches}
    logits, start = [], 0
    for length in pieces:
        end = start + length
        positions = np.tile(np.arange(start, end), (2, 1))
        feeds = {"attention_mask": np.ones((2, end), np.int64), "position_ids": positions} | past
        made, *presents = session.run(None, feeds | {"input_ids": ids[:, start:end]})
        logits.append(made)
        past = dict(zip(caches, presents, strict=True))
        start = end
    return np.concatenate(logits, 1)


def test_transformers_runs_the_graph(tmp_path: Path) -> None:
    """`ExportedModel` loads a graph with folded windows, and feeds its cache back."""
    from transformers.exporters import ExportedModel

    model = exported.make("gemma2")
    model.save_pretrained(tmp_path / "model")
    assert run("export --provider cpu --no-parity", tmp_path / "model", "-o", tmp_path / "out").exit_code == 0
    ids = torch.randint(0, ROWS, (2, 4 * WINDOW), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
    cache = transformers.DynamicCache(config=model.config)
    for layer in cache.layers:
        layer.keys = layer.values = torch.zeros(2, 2, 0, 8)
        layer.is_initialized, layer.dtype, layer.device = True, torch.float32, torch.device("cpu")
    loaded, start = ExportedModel.from_pretrained(tmp_path / "out"), 0
    for end in (3 * WINDOW, 3 * WINDOW + 2):
        mask, positions = torch.ones(2, end, dtype=torch.int64), torch.arange(start, end).repeat(2, 1)
        given = {"attention_mask": mask, "position_ids": positions, cache_argument(type(model)): cache}
        made = loaded(input_ids=ids[:, start:end], **given)
        assert (made.logits - wanted[:, start:end]).abs().max() < 1e-4 * wanted.abs().max()
        cache, start = cache_in(made), end


BASE = {"vocab_size": 88, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
MADE: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba": ("Mamba", {"state_size": 8}, "in layer 0 (linear_attention, LinearAttentionLayer)"),
    "rwkv": ("Rwkv", {"attention_hidden_size": 32, "intermediate_size": 48}, "in every layer (argument state)"),
    "jamba": ("Jamba", HEADS, "in layer 0 (linear_attention, LinearAttentionLayer)"),
    "lfm2": ("Lfm2", HEADS | {"layer_types": ["full_attention", "conv"]}, "in layer 1 (conv, LinearAttentionLayer)"),
}
WINDOWED = HEADS | {"sliding_window": 8}
SERVED = {"Llama": HEADS, "Mistral": WINDOWED, "Gemma2": WINDOWED | {"head_dim": 16}, "GPT2": {}}


@pytest.mark.parametrize("name", MADE)
def test_refused_before_anything_is_loaded(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with class and reason, as a plan and with OUT; neither weights nor the exporter are touched."""
    prefix, more, why = MADE[name]
    config = getattr(transformers, f"{prefix}Config")(**BASE | more)
    getattr(transformers, f"{prefix}ForCausalLM")(config).save_pretrained(tmp_path / name)
    touched = Mock(side_effect=AssertionError("the model was loaded or traced"))
    monkeypatch.setattr(export_run, "load", touched)
    monkeypatch.setattr(export_adapter, "export_graph", touched)
    for out in ((), ("-o", tmp_path / "out")):
        told = refused("export", tmp_path / name, *out)
        assert f"{prefix}ForCausalLM keeps another state than keys and values {why}" in told
    assert not (tmp_path / "out").exists()


def test_a_small_tied_matrix_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxscript folds the transpose of 800 numbers into a second matrix; an untied head of that size is exported."""
    monkeypatch.setattr(export_run, "load", Mock(side_effect=AssertionError("the model was loaded")))
    for tied in (True, False):
        config = transformers.LlamaConfig(**BASE | HEADS | {"vocab_size": 25, "tie_word_embeddings": tied})
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / str(tied))
    assert "has 800 numbers; export stores a tied matrix once from 1,024" in refused("export", tmp_path / "True")
    run("export", tmp_path / "False")


def test_a_cache_with_other_tensors(tmp_path: Path) -> None:
    """Layers that cache more than keys and values are refused by the class that transformers gives them."""
    transformers.DeepseekV32Config(**BASE | HEADS).save_pretrained(tmp_path)
    with pytest.raises(tieconv.TieconvError, match="DeepseekV32ForCausalLM keeps another state") as caught:
        export_plan.check_cache("DeepseekV32ForCausalLM", str(tmp_path), str(tmp_path))
    assert "in layer 0 (indexed_attention, DynamicIndexedLayer)" in caught.value.message


def stateful() -> list[str]:
    classes = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return sorted({
        name
        for name in classes
        if isinstance(name, str) and getattr(getattr(transformers, name, None), "_is_stateful", False) is True
    })  # fmt: skip


def test_there_are_stateful_classes() -> None:
    assert len(stateful()) > 15
    named = ("Mamba", "Mamba2", "Jamba", "FalconH1", "Zamba2", "Bamba", "GraniteMoeHybrid", "Rwkv", "Qwen3Next")
    assert {f"{prefix}ForCausalLM" for prefix in (*named, "RecurrentGemma")} <= set(stateful())


@pytest.mark.slow
def test_every_stateful_class_is_refused(tmp_path: Path) -> None:
    """Each class that transformers marks as stateful: one sentence with the class, the layer and the kind of state."""
    layer = "keeps another state than keys and values in (layer [0-9]+|every layer) [(][a-zA-Z_, 0-9]+[)]"
    for name in stateful():
        getattr(transformers, name).config_class().save_pretrained(tmp_path / name)
        with pytest.raises(tieconv.TieconvError) as caught:
            export_plan.check_cache(name, str(tmp_path / name), "MODEL")
        assert re.match(f"MODEL: {name} {layer}", caught.value.message), caught.value.message


@pytest.mark.parametrize("prefix", SERVED)
def test_windows_are_no_state(tmp_path: Path, prefix: str) -> None:
    """Full and sliding attention, told as layer types or not at all, are served."""
    getattr(transformers, f"{prefix}Config")(**BASE | SERVED[prefix]).save_pretrained(tmp_path)
    export_plan.check_cache(
        f"{prefix}{'LMHeadModel' if prefix == 'GPT2' else 'ForCausalLM'}", str(tmp_path), str(tmp_path)
    )


@pytest.mark.parametrize("prefix", ["Qwen2VL", "Llava", "Gemma3", "Whisper"])
def test_models_of_images_and_sound(prefix: str) -> None:
    """The class alone says what it takes: no instance is made."""
    name, taken = f"{prefix}ForConditionalGeneration", "input_features" if prefix == "Whisper" else "pixel_values"
    told = failure_of(sample_inputs.check_inputs, tieconv.TieconvError, getattr(transformers, name)).message
    assert told == f"{name} takes {taken}: export supports only language models from tokens to logits"


def test_a_plan_refuses_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without OUT refuses sound of any length, and loads nothing."""
    monkeypatch.setattr(export_run, "load", None)
    sides = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 88, "pad_token_id": 0}
    config = transformers.Speech2TextConfig(**sides, **sizes)
    transformers.Speech2TextForConditionalGeneration(config).save_pretrained(tmp_path)
    assert "Speech2TextForConditionalGeneration reads input_features" in refused("export", tmp_path)
