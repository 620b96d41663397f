"""`inspect` and `check` of graphs: roles from the nodes, states from the bytes, what a session holds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures.onnx_graphs import BUILDERS, SHARED, Graph, H, V, build, embedding, turned, values
from tests.cli.run import ok, refused, run
from tests.onnx.exported import ROWS, WIDTH, Exported
from tests.onnx.graphs import outputs, same_bits, write_optimised
from tests.onnx.nodes import model, op, outside, save, token_ids, value
from tests.onnx.test_remedies import embed_layer_norm
from tests.schemas import validate
from tieconv.checkpoint.inspection import Depth, Inspection, State
from tieconv.checkpoint.tie_group import BiasState

HEADS = {
    "transposed": State.TRANSPOSED, "exact": State.IDENTICAL, "half": State.TRANSPOSED, "cast": State.CAST,
    "cast_narrow": State.CAST, "bias": State.TRANSPOSED, "soft_cap": State.TRANSPOSED, "scale": State.TRANSPOSED,
    "two_pairs": State.TRANSPOSED, "two_heads": State.TRANSPOSED, "flat": State.TRANSPOSED,
    "columns": State.TRANSPOSED, "branches": State.TRANSPOSED, "untied": State.DISTINCT,
    "overridable": State.TRANSPOSED, "by_node": None, "genai": None, "shared": None,
}  # fmt: skip
"""What the head is to the embedding; ``None`` where it is the same initializer."""


def look(name: str, tmp_path: Path, **how: object) -> Inspection:
    return api.inspect(build(name, tmp_path / "in" / "model.onnx", **how))


def rules(inspection: Inspection) -> list[str]:
    return [finding.rule for finding in inspection.findings]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_head(tmp_path: Path, name: str, external: bool) -> None:
    """Head and embedding are found by what the nodes do with them, their relation by all of their bytes."""
    found = look(name, tmp_path, external=external)
    tie = found.word_tie
    assert tie is not None and found.head.output_head is not None
    assert [member.state for member in tie.members[1:]] == ([HEADS[name]] if HEADS[name] else [])
    assert (found.head.output_head.tied_to is not None) == (HEADS[name] is None)
    validate(found.to_dict(), "inspect")


@pytest.mark.parametrize("name", ["quantised", "quantised_twice"])
def test_no_head(tmp_path: Path, name: str) -> None:
    """A head that is quantised is not guessed at; the embedding is there."""
    found = look(name, tmp_path)
    assert found.head.input_embedding is not None and found.head.output_head is None
    assert found.ties == ()


def test_a_head_in_a_function(tmp_path: Path) -> None:
    """A session inlines functions, so the product in the body is the head."""
    found = look("in_function", tmp_path)
    assert found.head.output_head is not None and found.config.to_dict()["effective"] is True


FOLDED = {"quantised_twice", "in_function", "quantised", "branches", "half", "cast_narrow"}
"""Where the runtime folds or rewrites more than Transpose and Cast."""


@pytest.mark.parametrize("name", sorted({*BUILDERS} - FOLDED))
def test_session_bytes(tmp_path: Path, name: str) -> None:
    """What a session is said to hold is what ONNX Runtime writes as its optimised model (constants it folds apart)."""
    path = build(name, tmp_path / "in" / "model.onnx", external=False)
    graph = api.inspect(path).checkpoint.graphs[0]
    written = onnx.load(write_optimised(path, tmp_path / "optimised.onnx", "BASIC"))
    held = sum(len(numpy_helper.to_array(one).tobytes()) for one in _all(written.graph))
    assert abs(graph.session_bytes - held) <= 64


def _all(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    inner = [one.g for node in graph.node for one in node.attribute if one.HasField("g")]
    return [*graph.initializer, *(tensor for inside in inner for tensor in _all(inside))]


@pytest.mark.parametrize("name", sorted(SHARED))
def test_dedup_ends_in_silence(tmp_path: Path, name: str) -> None:
    """After `dedup` no rule has anything to say, at any depth."""
    source = build(name, tmp_path / "in" / "model.onnx")
    before = rules(api.inspect(source.parent))
    assert before == [] if name in ("by_node", "genai") else "ONX001" in before  # 12 kB folded are not worth a word
    api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    for depth in Depth:
        assert rules(api.inspect(tmp_path / "out", depth=depth)) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "gemma2", "opt"])
def test_real_exports(name: str, exported: Callable[..., Exported], tmp_path: Path) -> None:
    """Exports of torch and transformers: one matrix, latent behind a Transpose; silence after `dedup`."""
    folder = exported(name).graph.parent
    found = api.inspect(folder)
    assert found.head.input_embedding and found.head.input_embedding.shape == (ROWS, WIDTH)
    assert found.head.output_head and found.head.output_head.tied_to == found.head.input_embedding.name
    assert rules(found) == ["ONX002"]
    (latent,) = (one for one in found.checkpoint.graphs[0].latent if one.extra)
    assert (latent.operators, latent.nbytes) == (("Transpose",), ROWS * WIDTH * 4)
    api.plan_graph_dedup(folder).execute(tmp_path / "out")
    assert rules(api.inspect(tmp_path / "out")) == []
    if name == "bert":
        assert found.head.output_bias and found.head.output_bias.state is BiasState.NONZERO


def test_untied_export_is_silent(exported: Callable[..., Exported]) -> None:
    """An untied model has two matrices; a check of it passes."""
    folder = exported("llama-untied").graph.parent
    assert api.inspect(folder, depth="full").word_tie is not None
    result = run("check --fail-on note", folder)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("where", ["file", "directory"])
def test_check(tmp_path: Path, where: str) -> None:
    """The gate names the graph as the place, and exits 1."""
    path = build("transposed", tmp_path / "in" / "model.onnx")
    result = run("check --format json", path if where == "file" else path.parent)
    assert result.exit_code == 1
    (model,) = json.loads(result.stdout)["models"]
    (finding,) = model["findings"]
    assert (finding["rule"], finding["level"], finding["file"]) == ("ONX001", "warning", "model.onnx")
    for form in ("text", "sarif", "github", "junit", "markdown"):
        assert "ONX001" in run(f"check --format {form}", path).stdout


def test_text(tmp_path: Path) -> None:
    """People read where the graph is, what a session holds, and what to run next."""
    text = ok("inspect", build("transposed", tmp_path / "model.onnx")).stdout
    assert "opset 18, 5 nodes, 28.7 kB in a session" in text
    assert "transposed: every element compared" in text and "next: tieconv dedup" in text


def test_header_depth_reads_no_tensor(tmp_path: Path) -> None:
    """Roles and latent copies need no byte of a matrix."""
    found = api.inspect(build("transposed", tmp_path / "model.onnx"), depth="header")
    assert found.bytes_read == 0 and found.word_tie is not None
    assert found.word_tie.members[1].state is State.UNREAD and found.word_tie.consistent is None


def test_no_package(tmp_path: Path) -> None:
    """Neither onnx nor numpy is imported to inspect a graph whose matrix is shared."""
    import subprocess

    path = build("shared", tmp_path / "model.onnx")
    code = "import sys, tieconv; tieconv.inspect(sys.argv[1]); print(*{'onnx', 'onnx_ir', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_several_graphs(tmp_path: Path) -> None:
    """Each graph of a directory has its own pair; a region that two read is told as one."""
    path = build("transposed", tmp_path / "in" / "model.onnx")
    shutil.copy(path, path.with_name("decode.onnx"))
    found = api.inspect(path.parent)
    assert [tie.canonical for tie in found.ties] == [
        f"{name}:model.embed_tokens.weight" for name in ("decode.onnx", "model.onnx")
    ]
    assert found.bytes_stored < 2 * os.path.getsize(path.with_name("model.onnx.data"))
    assert rules(found) == ["ONX001", "ONX001"]


@pytest.mark.parametrize(
    ("folders", "more", "several"),
    [
        (("a", "b"), (), False),
        (("a", "b"), ("a/config.json",), False),
        (("a", "b"), ("a/config.json", "b/genai_config.json"), True),
        (("unet", "vae"), ("unet/config.json", "vae/config.json", "model_index.json"), False),
        (("cpu/int4", "cpu/int8"), (), True),
        (("cpu/int4",), (), False),
        (("models/a", "models/b"), ("genai_config.json",), False),
        (("", "cpu/int4"), (), True),
    ],
)
def test_several_models_are_refused(
    tmp_path: Path, folders: tuple[str, ...], more: tuple[str, ...], several: bool
) -> None:
    """A directory is one model unless its directories have their own configs, or are below others."""
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        build("transposed", tmp_path / folder / "model.onnx")
    for name in more:
        (tmp_path / name).write_text("{}")
    if not several:
        assert len(api.inspect(tmp_path).checkpoint.graphs) == len(folders)
        return
    first = tmp_path / (folders[0] or "model.onnx")
    hint = f"holds 2 ONNX graphs in 2 directories\nhint: give one of them: tieconv inspect {first}"
    every = f"; or check every model below: tieconv check {tmp_path}" if folders[0] else ""
    assert f"{hint}{every}\n" in run("inspect", tmp_path).stderr
    assert f"{tmp_path / folders[1]}: " in run("check", tmp_path).stdout or not folders[0]


def test_checkpoints_below_graphs_are_counted(tmp_path: Path) -> None:
    """A directory with a graph in each of many folders may hold checkpoints too."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        build("transposed", tmp_path / folder / "model.onnx")
        (tmp_path / folder / "config.json").write_text("{}")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "model.safetensors").write_bytes(b"")
    assert "holds 2 ONNX graphs in 2 directories, and 1 safetensors file\n" in run("inspect", tmp_path).stderr


def test_weights_before_graphs(tmp_path: Path) -> None:
    """Where a checkpoint lies beside a graph the checkpoint is the model; the graph can be named."""
    from safetensors.numpy import save_file

    path = build("transposed", tmp_path / "in" / "model.onnx")
    save_file({"a": np.zeros(4, "f4")}, path.with_name("model.safetensors"))
    assert api.inspect(path.parent).checkpoint.format == "safetensors"
    assert api.inspect(path).checkpoint.format == "onnx"


def test_classifier_is_no_head(tmp_path: Path) -> None:
    """A few labels called `logits` are no output head."""
    graph = embedding()
    graph.tensors["classifier"] = values(3, (H, 2))
    graph.add("MatMul", [graph.body(), "classifier"], "logits")
    graph.output("logits", ["batch", "sequence", 2])
    found = api.inspect(graph.save(tmp_path / "model.onnx"))
    assert found.head.output_head is None and rules(found) == []


@pytest.mark.parametrize("rows", [2 * V, V])
def test_positions_are_no_embedding(tmp_path: Path, rows: int) -> None:
    """A table of positions may have as many rows as the head has columns: its index is another input."""
    graph = Graph()
    graph.inputs.append(token_ids("position_ids", ["batch", "sequence"]))
    graph.tensors["wpe"], graph.tensors["wte"] = values(4, (rows, H)), values(1, (V, H))
    graph.add("Gather", ["wpe", "position_ids"], "positions")
    graph.add("Gather", ["wte", "input_ids"], "tokens")
    graph.add("Add", ["tokens", "positions"], "embedded")
    graph.tensors["head"] = turned(graph.tensors["wte"])
    graph.add("MatMul", [graph.body(), "head"], "logits")
    graph.output("logits")
    found = api.inspect(graph.save(tmp_path / "model.onnx"))
    assert found.head.input_embedding and found.head.input_embedding.name == "wte"


def test_positions_are_no_embedding_of_a_decoder_without_ids(tmp_path: Path) -> None:
    """The embedding is in another graph: the only table that is looked up here is one of positions."""
    graph = Graph()
    for name, kind, shape in (("position_ids", TensorProto.INT64, []), ("inputs_embeds", TensorProto.FLOAT, [H])):
        graph.inputs.append(value(name, ["batch", "sequence", *shape], kind))
    graph.tensors["wpe"], graph.tensors["head"] = values(4, (V, H)), turned(values(1, (V, H)))
    graph.add("Add", ["inputs_embeds", graph.add("Gather", ["wpe", "position_ids"], "positions")], "embedded")
    graph.add("MatMul", [graph.body(), "head"], "logits")
    graph.output("logits")
    found = api.inspect(graph.save(tmp_path / "model.onnx"))
    assert found.head.input_embedding is None
    assert found.head.output_head and found.head.output_head.name == "head"


def _computed(kind: str, graph: Graph) -> str:
    """Token ids that nodes compute from the input."""
    graph.tensors |= {"offset": np.array(1), "many": np.array(V), "order": np.array([0])}
    if kind == "offset":
        return graph.add("Mod", [graph.add("Add", ["input_ids", "offset"], "moved"), "many"], "ids")
    if kind == "mask":
        graph.add("Less", ["input_ids", "many"], "known")
        return graph.add("Mul", ["input_ids", graph.add("Cast", ["known"], "mask", to=TensorProto.INT64)], "ids")
    if kind == "order":
        return graph.add("Gather", ["input_ids", "order"], "ids", axis=1)
    return graph.add("Sub", [graph.add("Mul", ["input_ids", "offset"], "times"), "offset"], "ids")


@pytest.mark.parametrize("output", ["logits", "scores"])
@pytest.mark.parametrize("kind", ["offset", "mask", "order", "difference"])
def test_a_computed_index(tmp_path: Path, kind: str, output: str) -> None:
    """The embedding is looked up by numbers computed from the ids: with a head, whatever its output is called."""
    graph = Graph()
    graph.tensors["embed"] = values(1, (V, H))
    graph.add("Gather", ["embed", _computed(kind, graph)], "embedded")
    hidden = graph.body()
    bare = Graph(nodes=[*graph.nodes], tensors={**graph.tensors})
    graph.tensors["head"] = turned(graph.tensors["embed"])
    graph.add("MatMul", [hidden, "head"], output)
    graph.output(output)
    found = api.inspect(graph.save(tmp_path / "model.onnx"))
    assert found.head.input_embedding and found.head.input_embedding.name == "embed"
    assert found.head.output_head and found.head.output_head.name == "head" and rules(found) == ["ONX001"]
    bare.output(hidden, ["batch", "sequence", H])
    found = api.inspect(bare.save(tmp_path / "bare.onnx"))
    assert found.head.input_embedding and found.head.input_embedding.name == "embed"


def test_counted_positions_are_no_embedding(tmp_path: Path) -> None:
    """RoBERTa counts its positions from the ids; a graph that takes embeddings has no other lookup."""
    graph = Graph()
    graph.inputs.append(value("inputs_embeds", ["batch", "sequence", H]))
    graph.tensors |= {"axis": np.array(1), "table": values(1, (2 * V, H))}
    graph.add("CumSum", ["input_ids", "axis"], "counted")
    graph.add("Gather", ["table", graph.add("Mul", ["counted", "input_ids"], "positions")], "placed")
    graph.add("Add", ["placed", "inputs_embeds"], "embedded")
    graph.output(graph.body(), ["batch", "sequence", H])
    assert api.inspect(graph.save(tmp_path / "model.onnx")).head.input_embedding is None


@pytest.mark.parametrize("operator", ["LogSoftmax", "Softmax"])
def test_a_head_behind_a_softmax(tmp_path: Path, operator: str) -> None:
    """A graph that gives log probabilities has a head; `dedup` keeps every bit of them."""
    graph = embedding()
    graph.tensors["head"] = turned(graph.tensors["model.embed_tokens.weight"])
    graph.add("MatMul", [graph.body(), "head"], "product")
    graph.add(operator, ["product"], "scores", axis=-1)
    graph.output("scores")
    path = graph.save(tmp_path / "in" / "model.onnx")
    found = api.inspect(path)
    assert found.head.output_head and found.head.output_head.name == "head" and rules(found) == ["ONX001"]
    api.plan_graph_dedup(path.parent).execute(tmp_path / "out")
    assert same_bits(*(outputs(one, (2, 7), V) for one in (path, tmp_path / "out" / "model.onnx")))


def test_an_embed_layer_normalization(tmp_path: Path) -> None:
    """ONNX Runtime's BERT: the words are the embedding, not the longer table of positions."""
    found = api.inspect(embed_layer_norm().save(tmp_path / "model.onnx"))
    assert found.head.input_embedding and found.head.input_embedding.name == "words"
    assert found.head.output_head and found.head.output_head.name == "head" and rules(found) == ["ONX001"]


def test_hidden_state_is_no_product_of_a_head(tmp_path: Path) -> None:
    """A body that ends in a residual sum has no head, though a matrix with as many columns precedes it."""
    graph = embedding()
    graph.tensors["up"], graph.tensors["down"] = values(3, (H, V)), values(4, (V, H))
    hidden = graph.body()
    graph.add("MatMul", [hidden, "up"], "wide")
    graph.add("MatMul", ["wide", "down"], "narrow")
    graph.add("Add", ["narrow", hidden], "last_hidden_state")
    graph.output("last_hidden_state", ["batch", "sequence", H])
    assert api.inspect(graph.save(tmp_path / "model.onnx")).head.output_head is None


def test_latent_cast(tmp_path: Path) -> None:
    """A matrix read in two precisions is held twice; `dedup` cannot help, so no command is named."""
    graph = Graph()
    graph.tensors["embed"] = values(1, (1024, H), "f2")
    graph.add("Gather", ["embed", "input_ids"], "narrow")
    graph.add("Cast", ["narrow"], "embedded", to=TensorProto.FLOAT)
    hidden = graph.body()
    graph.add("Cast", ["embed"], "wide", to=TensorProto.FLOAT)
    graph.add("Transpose", ["wide"], "turned", perm=[1, 0])
    graph.add("MatMul", [hidden, "turned"], "logits")
    graph.output("logits", ["batch", "sequence", 1024])
    found = api.inspect(graph.save(tmp_path / "model.onnx"))
    (finding,) = found.findings
    assert finding.rule == "ONX002" and finding.remedy is None and "Cast and the Transpose" in finding.message
    assert found.checkpoint.graphs[0].latent[0].nbytes == 1024 * H * 4


def test_equal_in_an_untied_model_is_a_note(tmp_path: Path) -> None:
    """A config that says untied may be about to be trained; the copy is told, and fails no gate."""
    path = build("transposed", tmp_path / "in" / "model.onnx")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
    (path.parent / "config.json").write_text(json.dumps(config))
    (finding,) = api.inspect(path.parent).findings
    assert (finding.rule, finding.level) == ("ONX001", "note")


Heads = dict[str, tuple[list[onnx.NodeProto], list[tuple[str, np.ndarray]]]]


def _saved(path: Path, nodes: list[onnx.NodeProto], tensors: list[tuple[str, np.ndarray]], **how: object) -> Path:
    """A graph with token ids in and one output ``y``; ``constants`` of them are nodes instead of initializers."""
    constants = set(how.pop("constants", ()))  # type: ignore[call-overload]
    made = {name: numpy_helper.from_array(array, name) for name, array in tensors}
    held = [tensor for name, tensor in made.items() if name not in constants]
    spelt = [op("Constant", "", name, value=made[name]) for name in made if name in constants]
    output = value("y", [None] * int(how.pop("rank", 3)))  # type: ignore[call-overload]
    graph = helper.make_graph([*spelt, *nodes], "g", [token_ids()], [output], held)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10, **how), path)
    return path


LOOKUP = op("Gather", "embedding input_ids", "x")
TABLE = values(1, (V, H))


def _body(nodes: list[onnx.NodeProto], held: list[tuple[str, np.ndarray]]) -> onnx.GraphProto:
    """The body of a Loop: the number of the trip and the condition come in, logits are collected."""
    given = [token_ids("trip", []), value("go", [], TensorProto.BOOL), token_ids("ids", None)]
    made = [value("again", [], TensorProto.BOOL), token_ids("next", None), value("logits")]
    nodes = [op("Identity", "go", "again"), *nodes, op("Identity", "ids", "next")]
    return helper.make_graph(nodes, "body", given, made, [numpy_helper.from_array(a, name) for name, a in held])


HEAD = ("head", turned(TABLE))
IN_LOOP = _body([op("Gather", "embedding ids", "x"), op("MatMul", "x head", "logits")], [("embedding", TABLE), HEAD])
LOGITS = [LOOKUP, op("MatMul", "x head", "l")]
TIED: Heads = {
    "Einsum": ([LOOKUP, op("Einsum", "x embedding", "y", equation="bsh, vh -> bsv")], []),
    "Einsum of a copy": ([LOOKUP, op("Einsum", "x head", "y", equation="...sh,hv->...sv")], [HEAD]),
    "ArgMax": ([*LOGITS, op("ArgMax", "l", "y", axis=-1)], [HEAD]),
    "TopK": ([*LOGITS, op("TopK", "l five", "- y")], [HEAD, ("five", np.array([5]))]),
    "last token": ([*LOGITS, op("Gather", "l last", "y", axis=1)], [HEAD, ("last", np.array(-1))]),
    "masked": (
        [*LOGITS, op("Where", "mask l low", "y")], [HEAD, ("mask", np.ones(V, bool)), ("low", np.float32([-9]))]),
    "chain": ([LOOKUP, op("Transpose", "x", "t", perm=[0, 2, 1]), op("MatMul", "head t", "l"),
               op("Transpose", "l", "m", perm=[0, 2, 1]), op("Cast", "m", "c", to=TensorProto.FLOAT),
               op("Flatten", "c", "y", axis=2)], [("head", TABLE.copy())]),
    "Loop": ([op("Loop", "trips - input_ids", "after y", body=IN_LOOP)], [("trips", np.array(2))]),
}  # fmt: skip


def test_heads_before_other_nodes(tmp_path: Path) -> None:
    """Choosing, masking, collecting or transposing logits leaves the head a head, and every graph here is tied."""
    for name, (nodes, tensors) in TIED.items():
        held = [] if name == "Loop" else [("embedding", TABLE)]
        found = api.inspect(_saved(tmp_path / "model.onnx", nodes, [*held, *tensors]))
        assert found.config.to_dict()["effective"] is True, name
        assert found.head.output_head is not None, name
        validate(found.to_dict(), "inspect")


def test_nothing_is_claimed_without_a_head(tmp_path: Path) -> None:
    """An encoder, a graph without tables, and pairs whose bytes were not read: `null`, and a sentence that says why."""
    encoder = [LOOKUP, op("MatMul", "x w", "t"), op("Tanh", "t", "y")]
    cases = {
        "encoder": _saved(tmp_path / "encoder.onnx", encoder, [("embedding", TABLE), ("w", values(2, (H, 7)))]),
        "image": _saved(tmp_path / "image.onnx", [op("Relu", "f", "y")], [("f", TABLE)]),
    }
    for name, path in cases.items():
        found = api.inspect(path)
        assert found.config.to_dict()["effective"] is None, name
        assert found.head.output_head is None and found.ties == (), name
        assert run("inspect", path).stdout.startswith("Not known: no output head found in the graph."), name
    header = api.inspect(build("transposed", tmp_path / "header" / "model.onnx"), depth=Depth.HEADER)
    assert header.config.to_dict()["effective"] is None
    assert api.inspect(build("untied", tmp_path / "two" / "model.onnx")).config.to_dict()["effective"] is False


def test_token_types_are_not_tokens(tmp_path: Path) -> None:
    """Two segments and two classes are no tie, and the words of an int8 graph are found behind their dequantisation."""
    words = np.clip(np.rint(TABLE * 100), -127, 127).astype(np.int8)
    types = [op("Sub", "input_ids input_ids", "segment"), op("Gather", "types segment", "z")]
    types += [op("Add", "x z", "s"), op("MatMul", "s classes", "y")]
    held = [("words", words), ("scale", np.float32(0.01)), ("types", values(3, (2, H))), ("classes", values(4, (H, 2)))]
    lookup = op("Gather", "d input_ids", "x")
    forms = {
        "Mul": [op("Cast", "words", "c", to=TensorProto.FLOAT), op("Mul", "c scale", "d"), lookup],
        "DequantizeLinear": [op("DequantizeLinear", "words scale", "d"), lookup],
    }
    for operator, nodes in forms.items():
        found = api.inspect(_saved(tmp_path / "model.onnx", [*nodes, *types], held))
        quantised = [(read.role, read.name, read.operator) for read in found.checkpoint.graphs[0].quantised]
        assert quantised == [("embedding", "words", operator)], operator
        assert found.head.output_head is None and found.config.to_dict()["effective"] is None, operator


def test_constant_nodes(tmp_path: Path) -> None:
    """Constants are counted, compared, stored once and untied like initializers, with the same bits in a session."""
    nodes = [LOOKUP, op("Gather", "second input_ids", "z"), op("Add", "x z", "s"), op("Add", "s floats", "t"),
             op("Slice", "t from to", "u"), op("Mul", "u float", "v"), op("Gather", "v int", "w", axis=1),
             op("MatMul", "w head", "y")]  # fmt: skip
    spelt = [op("Constant", "", "floats", value_floats=[0.5] * H), op("Constant", "", "float", value_float=2.0),
             op("Constant", "", "from", value_ints=[0]), op("Constant", "", "to", value_ints=[1000]),
             op("Constant", "", "int", value_int=0)]  # fmt: skip
    held = [("embedding", TABLE), ("second", TABLE.copy()), HEAD]
    path = _saved(tmp_path / "model.onnx", [*spelt, *nodes], held, constants=("embedding", "second", "head"), rank=2)
    found = api.inspect(path, depth=Depth.FULL)
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in found.checkpoint.tensors.items()}
    assert shapes["floats"] == ("F32", (H,)) and shapes["float"] == ("F32", ()) and shapes["int"] == ("I64", ())
    assert shapes["from"] == ("I64", (1,)) and len(shapes) == 8
    assert found.bytes_stored == 3 * TABLE.nbytes + 4 * H + 4 + 3 * 8
    assert found.config.to_dict()["effective"] is True and rules(found) == ["ONX001", "ONX001"][: len(rules(found))]
    outcome = api.plan_graph_dedup(path).execute(tmp_path / "small.onnx")
    assert outcome.proofs[0].runs is not None and outcome.proofs[0].runs.equal and not outcome.proofs[0].runs.not_run
    assert api.inspect(tmp_path / "small.onnx", depth=Depth.FULL).bytes_stored < TABLE.nbytes + 1000
    for shape in ((1, 1), (2, 3), (0, 2)):
        assert same_bits(*(outputs(each, shape, V) for each in (path, tmp_path / "small.onnx"))), shape
    api.plan_graph_untie(tmp_path / "small.onnx").execute(tmp_path / "untied.onnx")
    assert api.inspect(tmp_path / "untied.onnx").bytes_stored > 2 * TABLE.nbytes


def test_constants_of_functions(tmp_path: Path) -> None:
    """A function's constant is a copy for each call; `dedup` inlines the function, as a session does."""
    matrix = numpy_helper.from_array(turned(TABLE), "value")
    body = [op("Constant", "", "w", value=matrix), op("MatMul", "a w", "b")]
    function = helper.make_function("own", "Head", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    calls = [op("Head", "x", name, domain="own") for name in ("one", "two")]
    nodes = [LOOKUP, *calls, op("Add", "one two", "y")]
    path = _saved(tmp_path / "model.onnx", nodes, [("embedding", TABLE)], functions=[function])
    found = api.inspect(path, depth=Depth.FULL)
    assert found.checkpoint.graphs[0].session_bytes == 3 * TABLE.nbytes
    assert [copies.tensors for copies in found.duplicates] == [("embedding", "w")]
    api.plan_graph_dedup(path).execute(tmp_path / "small.onnx")
    assert api.inspect(tmp_path / "small.onnx").checkpoint.graphs[0].session_bytes < TABLE.nbytes + 100
    assert same_bits(*(outputs(each, (1, 3), V) for each in (path, tmp_path / "small.onnx")))


def test_a_sparse_constant_is_refused(tmp_path: Path) -> None:
    """`dedup` would lose it."""
    value = helper.make_tensor("", TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(value, helper.make_tensor("", TensorProto.INT64, [1], [0]), [V])
    nodes = [op("Constant", "", "bias", sparse_value=sparse), LOOKUP, op("Identity", "x", "y")]
    path = _saved(tmp_path / "model.onnx", nodes, [("embedding", TABLE)])
    assert api.inspect(path).checkpoint.graphs[0].sparse == 1
    assert "sparse tensors" in refused("dedup", path)


def test_one_region_of_a_file_is_two_matrices_in_a_session(tmp_path: Path) -> None:
    """Two initializers with the same location and offset: nothing is wasted on disk, one copy in each session."""
    nodes = [LOOKUP, op("Flatten", "x", "f", axis=2), op("Gemm", "f head", "y", transB=1)]
    stored = [outside(name, (V, H), "data", 0, TABLE.nbytes) for name in ("embedding", "head")]
    path = tmp_path / "model.onnx"
    path.write_bytes(model(nodes, [token_ids()], [value("y", [None] * 2)], stored).SerializeToString())
    (tmp_path / "data").write_bytes(TABLE.tobytes())
    found = api.inspect(path)
    assert found.bytes_stored == TABLE.nbytes and found.checkpoint.graphs[0].session_bytes == 2 * TABLE.nbytes
    assert [finding.rule for finding in found.findings] == ["ONX001"]
    assert "Each session holds it twice" in found.findings[0].message
    api.plan_graph_dedup(path).execute(tmp_path / "small.onnx")
    after = api.inspect(tmp_path / "small.onnx")
    assert after.checkpoint.graphs[0].session_bytes == TABLE.nbytes and not after.findings


def test_what_the_default_depth_did_not_compare_in_a_graph(tmp_path: Path) -> None:
    """A graph of a voice detector stores two equal networks, without an embedding or a head."""
    weights = {f"w{number}": np.ones((200, 200), np.float32) for number in range(3)}
    nodes = [op("MatMul", f"x{n} w{n}", f"x{n + 1}") for n in range(3)]
    path = save(model(nodes, [value("x0", [1, 200])], [value("x3", [1, 200])], weights), tmp_path / "model.onnx")
    sentence = "Only tied tensors were compared. --depth full compares the other 3."
    assert sentence in ok("inspect", path).stdout
    document = json.loads(ok("inspect --json", path).stdout)
    assert document["model"]["not_compared"] == {"tensors": 3, "bytes": 2 * 200 * 200 * 4}
    assert sentence in run("check", path).stderr
    assert "not_compared" not in ok("inspect --depth full --json", path).stdout
    assert "ONX001" in run("check --depth full", path).stdout


def test_the_nodes_answer_beside_a_config_of_another_program(tmp_path: Path) -> None:
    """A config without a class, a model type and a tie flag says nothing about the graph."""
    build("untied", tmp_path / "model.onnx")
    for text in ("{}", '{"mask_token": "[mask]", "max_seq_length": 32}'):
        (tmp_path / "config.json").write_text(text)
        assert ok("inspect", tmp_path).stdout.startswith("Untied: the nodes of the graph say so.")
