"""Vision-language models of many families: greedy tokens of the graphs are torch's, for text and with an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import tieconv
from tests.onnx.embeds.families import FAMILIES, picture, save, words
from tests.onnx.embeds.generation import graph_tokens, torch_tokens

transformers = pytest.importorskip("transformers")
THREE = {"qwen2-vl", "qwen2.5-vl"}
BLOCKS = {"paligemma": "1", "gemma3": "0"}
"""Token types of text, for the models that let the tokens of an image attend to each other."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens(tmp_path: Path, name: str) -> None:
    source, out = save(name, tmp_path / "model"), tmp_path / "out"
    outcome = tieconv.export(source, out)
    assert outcome.parity is not None
    assert outcome.parity.verdict == "passed"
    assert outcome.parity.identity is not None
    assert outcome.parity.identity.copies == 1
    decoder = onnx.load(str(out / "model.onnx"), load_external_data=False)
    shapes = {value.name: value.type.tensor_type.shape.dim for value in decoder.graph.input}
    assert len(shapes["position_ids"]) == (3 if name in THREE else 2)
    noted = {entry.key: entry.value for entry in decoder.metadata_props}
    assert noted.get("tieconv.causal_token_type") == BLOCKS.get(name)
    assert ("token_type_ids" in shapes) == (name in BLOCKS)
    (architecture,) = json.loads((source / "config.json").read_text())["architectures"]
    model: Any = getattr(transformers, architecture).from_pretrained(source).eval()
    for inputs in (words(), picture(name)):
        tokens, read = torch_tokens(model, inputs)
        causal = int(noted.get("tieconv.causal_token_type", "0"))
        assert graph_tokens(out, read, inputs.get("token_type_ids"), causal) == tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gemma", "llama-untied"])
def test_a_language_model_on_request(tmp_path: Path, name: str) -> None:
    """`--inputs-embeds`: two graphs of a model without images. The scale of Gemma's rows is in the embedding."""
    from tests.onnx.exported import make

    make(name).save_pretrained(tmp_path / "model")
    outcome = tieconv.export(tmp_path / "model", tmp_path / "out", inputs_embeds=True)
    assert outcome.parity is not None
    assert outcome.parity.verdict == "passed"
    assert outcome.plan.left_out == ()
    embedding = onnx.load(str(tmp_path / "out" / "embed_tokens.onnx"), load_external_data=False)
    kinds = [node.op_type for node in embedding.graph.node]
    assert kinds == (["Gather", "Mul"] if name == "gemma" else ["Gather"])
