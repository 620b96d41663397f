"""The language model of a vision-language model: two graphs, one data file, and torch's tokens in many families."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv
from tests.cli.run import ok, refused
from tests.lazy import sample_inputs, torch, transformers
from tests.onnx import nodes
from tests.onnx.embeds.families import FAMILIES, ROWS, graph_tokens, picture, save, torch_tokens, words
from tests.onnx.exported import CACHE
from tests.slow import fast_only
from tieconv.checkpoint.graph_plan import ExportOutcome
from tieconv.errors import RefusedError
from tieconv.reference.model import Reference

Made = tuple[Path, Path, ExportOutcome]
GRAPHS = ("embed_tokens.onnx", "model.onnx")


def proto(path: Path) -> onnx.ModelProto:
    return onnx.load(str(path), load_external_data=False)


def place(path: Path, shape: list[int]) -> list[dict[str, str]]:
    """Where the graph's initializers of this shape are: file, offset and length."""
    tensors = [tensor for tensor in proto(path).graph.initializer if list(tensor.dims) == shape]
    return [{entry.key: entry.value for entry in tensor.external_data} for tensor in tensors]


def test_two_graphs_share_one_matrix(llava: Made) -> None:
    """Both graphs refer to one byte range of one file, which nothing else repeats; each session holds it once."""
    model, out, outcome = llava
    assert outcome.executed
    assert outcome.parity is not None
    assert outcome.parity.verdict == "passed"
    first, second = (place(out / name, [ROWS, 32]) for name in GRAPHS)
    assert first == second
    assert len(first) == 1
    table = transformers.AutoModelForImageTextToText.from_pretrained(model).get_input_embeddings().weight
    rows = table.detach().numpy().tobytes()
    data = (out / first[0]["location"]).read_bytes()
    assert data[int(first[0]["offset"]) :][: int(first[0]["length"])] == rows
    assert data.count(rows) == 1
    assert [(proof.graph, list(dict(proof.copies).values())) for proof in outcome.proofs] == [
        ("model.onnx", [1]),
        ("embed_tokens.onnx", [1]),
    ]
    assert sorted(outcome.files) == sorted([*GRAPHS, "model.onnx.data"])


def test_the_inputs_of_each_graph(llava: Made) -> None:
    """The embedding reads ids and gives rows; the decoder reads rows, mask, positions and cache, and no ids."""
    _, out, _ = llava
    embedding, decoder = (proto(out / name).graph for name in GRAPHS)
    assert [value.name for value in embedding.input] == ["input_ids"]
    assert [value.name for value in embedding.output] == ["inputs_embeds"]
    names = [value.name for value in decoder.input]
    assert names[:3] == ["inputs_embeds", "attention_mask", "position_ids"]
    assert all(CACHE in name for name in names[3:])
    dims = decoder.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["batch", "sequence", 32]


def test_plan_and_document_say_what_is_not_exported(llava: Made) -> None:
    model, out, outcome = llava
    left = ["model.vision_tower", "model.multi_modal_projector"]
    assert list(outcome.plan.left_out) == left
    text = ok("export", model).stdout
    assert "language model of LlavaForConditionalGeneration, decoder with cache, from inputs_embeds" in text.replace(
        "\n  ", " "
    )
    assert "not exported  model.vision_tower, model.multi_modal_projector" in text
    document = json.loads((out / "export.json").read_text())
    assert document["tieconv"]["not_exported"] == left
    assert document["tieconv"]["embedding"]["file"] == "embed_tokens.onnx"
    assert document["tieconv"]["inputs"][0]["name"] == "inputs_embeds"
    stored = sum(value.nbytes for value in tieconv.inspect(model).checkpoint.tensors.values())
    assert outcome.plan.bytes_written < stored


@pytest.mark.slow
def test_every_id_and_random_rows_are_measured(llava: Made) -> None:
    _, _, outcome = llava
    report = outcome.parity
    assert report is not None
    gates = {gate.name: gate for gate in report.gates}
    assert f"for each of {ROWS} ids" in gates["embedding_rows"].sentence
    assert f"for each of {ROWS} ids" in gates["token_lookup"].sentence
    assert sum(case.group == "random rows of inputs_embeds" for case in report.cases) >= 9
    assert report.identity is not None
    assert report.identity.lost == ()
    assert report.identity.copies == 1
    assert any("vision_tower" in name for name in report.identity.unused)
    assert not any("language_model" in name for name in report.identity.unused)


def test_transformers_loads_the_decoder(llava: Made) -> None:
    from transformers.exporters import ExportedModel

    _, out, _ = llava
    assert list(ExportedModel.from_pretrained(out).components) == ["model"]


def test_greedy_tokens_of_text(llava: Made) -> None:
    from tests.onnx.embeds.families import picture, words

    source, out, _ = llava
    model = transformers.AutoModelForImageTextToText.from_pretrained(source).eval()
    for inputs in (words(), picture("llava")):
        tokens, read = torch_tokens(model, inputs)
        assert graph_tokens(out, read, None, 0) == tokens


def twice(graph: onnx.GraphProto) -> None:
    """The embedding's rows, multiplied by two."""
    graph.node[-1].output[0] = "rows"
    graph.initializer.append(numpy_helper.from_array(np.float32(2.0), "two"))
    graph.node.append(helper.make_node("Mul", ["rows", "two"], ["inputs_embeds"]))


def one_id(graph: onnx.GraphProto) -> None:
    """The row of id 5 for id 6."""
    graph.initializer.append(numpy_helper.from_array(np.int64(6), "six"))
    graph.initializer.append(numpy_helper.from_array(np.int64(5), "five"))
    graph.node.insert(0, helper.make_node("Equal", ["input_ids", "six"], ["is_six"]))
    graph.node.insert(1, helper.make_node("Where", ["is_six", "five", "input_ids"], ["ids"]))
    graph.node[2].input[1] = "ids"


def replaced_rows(graph: onnx.GraphProto, name: str) -> None:
    for node in graph.node:
        node.input[:] = [name if value == "inputs_embeds" else value for value in node.input]


def clipped(graph: onnx.GraphProto) -> None:
    """Rows clipped to the range of the table: no token shows it."""
    replaced_rows(graph, "rows")
    graph.initializer.append(numpy_helper.from_array(np.float32(-1.0), "low"))
    graph.initializer.append(numpy_helper.from_array(np.float32(1.0), "high"))
    graph.node.insert(0, helper.make_node("Clip", ["inputs_embeds", "low", "high"], ["rows"]))


def shifted(graph: onnx.GraphProto) -> None:
    """Positions that begin at 1."""
    for node in graph.node:
        node.input[:] = ["places" if value == "position_ids" else value for value in node.input]
    graph.initializer.append(numpy_helper.from_array(np.array([0, 1], np.int64)[1:], "one"))
    graph.node.insert(0, helper.make_node("Mul", ["position_ids", "position_ids"], ["places"]))


FAULTS: dict[str, tuple[str, Callable[[onnx.GraphProto], None], str]] = {
    "every row doubled": ("embed_tokens.onnx", twice, "embedding_rows"),
    "one id with another row": ("embed_tokens.onnx", one_id, "embedding_rows"),
    "rows clipped": ("model.onnx", clipped, "case_ratio"),
    "positions squared": ("model.onnx", shifted, "case_ratio"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", fast_only(FAULTS, ["every row doubled", "rows clipped"]))
def test_a_fault_in_either_graph_fails(llava: Made, tmp_path: Path, name: str) -> None:
    source, out, _ = llava
    graph, plant, gate = FAULTS[name]
    broken = shutil.copytree(out, tmp_path / "out")
    made = proto(broken / graph)
    plant(made.graph)
    onnx.save(made, str(broken / graph))
    report = tieconv.parity(broken, source, provider="cpu")
    assert report.verdict == "failed"
    assert gate in [entry.name for entry in report.gates if not entry.passed]
    if name == "rows clipped":
        words = [case.ratio for case in report.cases if case.group != "random rows of inputs_embeds"]
        assert max(value for value in words if value is not None) < 5


def test_a_decoder_without_its_embedding_is_not_run(llava: Made, tmp_path: Path) -> None:
    source, out, _ = llava
    alone = shutil.copytree(out, tmp_path / "out")
    (alone / "embed_tokens.onnx").unlink()
    report = tieconv.parity(alone, source, provider="cpu")
    assert report.verdict == "not_run"
    assert "embed_tokens.onnx" in (report.hint or "")


@pytest.mark.parametrize("option", [("--layout", "optimum"), ("--quantise", "int4")])
def test_options_of_one_graph_are_refused(llava: Made, option: tuple[str, str]) -> None:
    sentence = refused("export", llava[0], *option)
    assert f"{option[0]} supports only one graph" in sentence


def test_images_that_the_decoder_reads_otherwise(tmp_path: Path) -> None:
    """Qwen3-VL adds image features inside the decoder, which rows do not carry."""
    model = save("qwen3-vl", tmp_path / "model")
    assert "passes deepstack_visual_embeds, visual_pos_masks to its decoder" in refused("export", model)


def test_inputs_embeds_needs_a_decoder(models: Path) -> None:
    assert "is not a decoder that takes inputs_embeds" in refused("export", models / "bert-mlm", "--inputs-embeds")
    config = str(models / "llama-tied")
    for name, why in (("LlamaForCausalLM", "does not say which of its modules"), ("LlamaModel", "has no head")):
        with pytest.raises(RefusedError, match=why):
            sample_inputs.left_out_parts(getattr(transformers, name), config, (), images=True)


def values(graph: onnx.GraphProto) -> Any:
    return [(value.name, value.type.tensor_type.elem_type) for value in graph.input]


def test_a_shared_weight_is_not_copied(tmp_path: Path) -> None:
    """Both halves of a graph keep the reference to the data file, and a node that both need is in both."""
    from tieconv.onnx.write.plan import split_at

    table = np.arange(4096, dtype=np.float32).reshape(64, 64)
    made = nodes.model(
        [nodes.op("Gather", "table ids", "rows"), nodes.op("MatMul", "rows table", "out")],
        [nodes.token_ids("ids", ["n"])], [nodes.value("out", ["n", 64])], {"table": table},
        value_info=[nodes.value("rows", ["n", 64])],
    )  # fmt: skip
    nodes.save(made, tmp_path / "g.onnx", external=True)
    before = (tmp_path / "g.onnx.data").read_bytes()
    split_at(tmp_path, "g.onnx", ["rows"], "first.onnx")
    assert (tmp_path / "g.onnx.data").read_bytes() == before
    assert place(tmp_path / "g.onnx", [64, 64]) == place(tmp_path / "first.onnx", [64, 64]) != []
    assert values(proto(tmp_path / "g.onnx").graph) == [("rows", TensorProto.FLOAT)]
    assert values(proto(tmp_path / "first.onnx").graph) == [("ids", TensorProto.INT64)]
    with pytest.raises(tieconv.TieconvError, match=r"g\.onnx cannot be split: Value with name 'lost'"):
        split_at(tmp_path, "g.onnx", ["lost"], "second.onnx")


def toy(habit: str) -> torch.nn.Module:
    """A decoder that sums the rows before each token, and reads positions and types as ``habit`` says."""

    class Toy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(ROWS, 8)

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.table

        def forward(
            self,
            input_ids: Any = None,
            attention_mask: Any = None,
            position_ids: Any = None,
            inputs_embeds: Any = None,
            token_type_ids: Any = None,
            use_cache: bool = True,
        ) -> Any:
            if use_cache or habit == "needs an image":
                raise ValueError(habit)
            rows = self.table(input_ids) * (1.5 if habit == "scales ids" else 1) if inputs_embeds is None else None
            rows = inputs_embeds if rows is None else rows
            if position_ids.ndim == 3 and habit != "three axes":
                if habit == "two axes":
                    raise ValueError("three axes of positions")
                position_ids = position_ids[:1].expand(3, -1, -1)
            axes = position_ids if position_ids.ndim == 3 else torch.stack([position_ids] * 3)
            places = axes[0] + 0.5 * axes[1] + 0.25 * axes[2]
            rows = rows + 0.1 * places[..., None]
            sums = rows.cumsum(1)
            if token_type_ids is not None:
                kind = int(token_type_ids[0, 0])
                if habit == "adds types":
                    sums = sums + kind
                elif habit in ("0 is causal", "1 is causal") and kind != int(habit[0]):
                    sums = rows.sum(1, keepdim=True).expand_as(rows)
                elif habit == "none is causal":
                    sums = rows.sum(1, keepdim=True).expand_as(rows) * (1 + kind)
            return SimpleNamespace(logits=sums @ self.table.weight.T)

    return Toy()


PROBED: dict[str, dict[str, Any] | str] = {
    "three axes": {"axes": 3},
    "two axes": {},
    "first axis": {},
    "adds types": {},
    "0 is causal": {"blocks": "token_type_ids", "causal": 0},
    "1 is causal": {"blocks": "token_type_ids", "causal": 1},
    "none is causal": "reads token_type_ids in a way that tieconv does not know",
    "scales ids": "computes other logits from the rows of its embedding than from token ids",
    "needs an image": "does not run on text alone",
}


@pytest.mark.parametrize("habit", PROBED)
def test_what_a_decoder_reads_besides_rows(habit: str) -> None:
    """Positions of three numbers, and types that let a token attend to later ones; or why it is not exported."""
    torch.manual_seed(0)
    reference, expected = Reference(toy(habit), "float32", (), ()), PROBED[habit]
    if isinstance(expected, dict):
        assert sample_inputs.probe(reference, ROWS) == sample_inputs.Reads(**expected)
    else:
        with pytest.raises(RefusedError) as refusal:
            sample_inputs.probe(reference, ROWS)
        assert refusal.value.message.startswith(f"Toy {expected}: export cannot write its language model")


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
