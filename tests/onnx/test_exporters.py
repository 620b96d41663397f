"""Graphs of exporters and optimisers of today: once stored, once held, the same bits."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tieconv as api
from fixtures import exporters
from fixtures.onnx_graphs import SHARED, V, build
from tests.cli.run import run
from tests.lazy import ort, torch
from tests.onnx.graphs import SHAPES, copies, disk, outputs, same_bits, session, tensors, write_optimised
from tests.slow import fast_only

SIZE, WIDTH = 300, 32


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn of their own internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def llama(*, parameters: int):
    """A tied model; with two ``parameters`` its tie is one of values only, as after a careless load."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    if parameters == 2:
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.data.clone())
    return model


def by_torch(model, directory: Path) -> None:
    ids, (batch, sequence) = torch.randint(0, SIZE, (2, 5)), (torch.export.Dim("batch"), torch.export.Dim("sequence"))
    how: dict[str, Any] = {"dynamic_shapes": ({0: batch, 1: sequence},), "input_names": ["input_ids"]}
    path = str(directory / "model.onnx")
    torch.onnx.export(model, (ids,), path, dynamo=True, verbose=False, external_data=True, **how)


def by_transformers(model, directory: Path) -> None:
    from transformers.exporters import OnnxExporter
    from transformers.exporters.exporter_onnx import OnnxConfig

    ids = torch.randint(0, SIZE, (2, 5))
    OnnxExporter().export(model, {"input_ids": ids}, OnnxConfig(dynamic=True)).save_pretrained(str(directory))


@pytest.mark.parametrize("parameters", [1, 2])
@pytest.mark.parametrize("exporter", fast_only([by_torch, by_transformers], [by_transformers]))
def test_exported(tmp_path: Path, exporter, parameters: int) -> None:
    """A session of an export holds the tied matrix twice; after dedup it holds it once, and gives the same bits."""
    model = llama(parameters=parameters)
    (tmp_path / "in").mkdir()
    with quiet():
        exporter(model, tmp_path / "in")
    weight = model.model.embed_tokens.weight.detach().numpy()
    source = tmp_path / "in" / "model.onnx"
    assert len(copies(source, weight)) == parameters
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    (matrix,) = outcome.plan.matrices
    assert (matrix.held_before, matrix.held_after) == (2 * weight.nbytes, weight.nbytes)
    assert [times for _, times in outcome.proofs[0].copies] == [1]
    assert len(copies(tmp_path / "out/model.onnx", weight)) == 1
    for shape in SHAPES:
        assert same_bits(outputs(source, shape, SIZE), outputs(tmp_path / "out/model.onnx", shape, SIZE))
    before, after = (described(path) for path in (source, tmp_path / "out/model.onnx"))
    nodes = onnx.load(source, load_external_data=False).graph.node
    turned = {name for node in nodes if node.op_type == "Transpose" for name in node.output}
    assert {name for name in before if before[name] != after.get(name)} <= {*matrix.dropped, *turned}
    assert {name.rsplit("/", 1)[-1] for name in after.keys() - before.keys()} == {"Reshape", "Gemm", "Shape", "Concat"}


def described(path: Path) -> dict[str, bytes]:
    """Type and shape of every value that the graph describes."""
    infos = onnx.load(path, load_external_data=False).graph.value_info
    return {info.name: info.SerializeToString(deterministic=True) for info in infos}


def onnxscript(source: Path, to: Path) -> None:
    from onnxscript import optimizer

    model = onnx.load(source)
    with quiet():
        onnx.save(optimizer.optimize(model), to)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("optimise", [write_optimised, onnxscript])
@pytest.mark.parametrize("name", sorted(set(SHARED) - {"half", "cast_narrow"}))
def test_optimisers_leave_it_shared(tmp_path: Path, name: str, optimise) -> None:
    """What the pass wrote stays one matrix when it is optimised again; what exporters write does not."""
    source = build(name, tmp_path / "in" / "model.onnx", external=False)
    api.plan_graph_dedup(source).execute(tmp_path / "once.onnx")
    optimise(tmp_path / "once.onnx", tmp_path / "again.onnx")
    matrix = next(a for a in SHARED[name]().tensors.values() if a.ndim == 2 and V in a.shape)
    assert len(copies(tmp_path / "again.onnx", matrix)) == 1
    if optimise is write_optimised:
        optimise(source, tmp_path / "untouched.onnx")
        assert len(copies(tmp_path / "untouched.onnx", matrix)) > 1


def test_size_of_a_duplicate(tmp_path: Path) -> None:
    """The file loses the copy, and gains less than two pages for nodes and alignment."""
    source = build("transposed", tmp_path / "in" / "model.onnx")
    api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    copy = SHARED["transposed"]().tensors["onnx::MatMul_447"]
    assert disk(source.parent) - copy.nbytes <= disk(tmp_path / "out") < disk(source.parent) - copy.nbytes + 8192
    assert np.array_equal(copy.T, SHARED["transposed"]().tensors["model.embed_tokens.weight"])


ALL = sorted(path.parent for path in exporters.HERE.rglob("*.onnx"))
FOLDERS = [folder for folder in ALL if "int4" not in folder.name]
INT4 = [folder for folder in ALL if "int4" in folder.name]
UNTIED = ("optimum-t5", "mobius-gpt2", "merged-llama", "genai-gemma2")
"""Those that every run unties, and shares in each form."""
VOCABULARY, H = 88, 32
BATCH, SEQUENCE, ENCODED, WINDOW = 2, 3, 5, 32
DUPLICATED = {"mobius-gemma", "mobius-gpt2", "mobius-opt", "optimum-bart"}
"""Whose file holds a transposed copy; the others' sessions fold a Transpose."""


def graph_of(folder: Path) -> Path:
    (path,) = folder.glob("*.onnx")
    return path


def size(side: str | int, past: int, batch: int = BATCH) -> int:
    """The size of an axis by its name."""
    if isinstance(side, int):
        return side
    if "sliding" in side:
        return WINDOW  # such a cache is as long as the window from the start
    if "mask" in side:
        return past + SEQUENCE
    if "past" in side or "total" in side:
        return past + SEQUENCE if "+" in side or "total" in side else past
    known = {"batch": batch, "encoder": ENCODED, "kv_cache_dim": 16, "decoder_seq": SEQUENCE, "sequence": SEQUENCE}
    return next(value for name, value in known.items() if name in side)


def feed(made: ort.InferenceSession, past: int) -> dict[str, np.ndarray]:
    """Random inputs with a cache of ``past`` steps."""
    rng = np.random.default_rng(past)
    found: dict[str, np.ndarray] = {}
    # GroupQueryAttention takes one sequence where there are several new tokens and a past.
    batch = 1 if past and any(value.name == "past_key_values.0.key" for value in made.get_inputs()) else BATCH
    for value in made.get_inputs():
        shape = [size(side, past, batch) for side in value.shape]
        values: dict[str, Callable[[], Any]] = {
            "input_ids": lambda shape=shape: rng.integers(0, VOCABULARY, shape),
            "position_ids": lambda: np.tile(np.arange(past, past + SEQUENCE), (batch, 1)),
            "token_type_ids": lambda shape=shape: np.zeros(shape, "i8"),
            "use_cache_branch": lambda: np.array([past > 0]),
        }
        if value.name in values:
            found[value.name] = values[value.name]()
        elif "mask" in value.name:
            found[value.name] = np.ones(shape, "i8")
        else:
            found[value.name] = rng.standard_normal(shape).astype("f4")
    return found


def outputs_of(path: Path, past: int) -> list[np.ndarray]:
    """Every output; of a graph with a sliding cache the logits, since it returns memory that it never wrote."""
    made = session(path, optimise=True)
    sliding = any("sliding" in str(side) for value in made.get_inputs() for side in value.shape)
    return made.run(["logits"] if sliding else None, feed(made, past))


def embedding(path: Path) -> np.ndarray:
    """The tied matrix as [V, H]."""
    matrix = next(array for _, array in tensors(path) if sorted(array.shape) == [H, VOCABULARY])
    return matrix if matrix.shape == (VOCABULARY, H) else np.ascontiguousarray(matrix.T)


def test_what_is_committed() -> None:
    """Four exporters, fifteen models, the files that the manifest names, with the versions that wrote them."""
    manifest = json.loads(exporters.MANIFEST.read_text())
    assert manifest["files"] == exporters.files()
    assert set(manifest["versions"]) == set(exporters.MADE)
    assert {folder.name for folder in ALL} == {f"{e}-{name}" for e, names in exporters.MADE.items() for name in names}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_inspect(folder: Path) -> None:
    """`inspect` sees the second copy that a session will hold, stored or folded."""
    found = json.loads(run("inspect --json", graph_of(folder)).stdout)
    (tie,), (graph,) = found["ties"], found["graphs"]
    states = [member["state"] for member in tie["members"]]
    if folder.name in DUPLICATED:
        assert states == ["canonical", "transposed"] and tie["bytes_wasted"] == 4 * VOCABULARY * H
    else:
        assert states == ["canonical"] and [latent["extra"] for latent in graph["latent"]] == [True]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("folder", "form"),
    [
        pytest.param(folder, form, id=f"{folder.name}-{form}", marks=() if form in each_run else pytest.mark.slow)
        for folder in FOLDERS
        for form in ("gemm", "fused", "transpose")
        for each_run in [("gemm", "fused", "transpose") if folder.name in UNTIED else ("gemm",)]
    ],
)
def test_dedup(tmp_path: Path, folder: Path, form: str) -> None:
    """Stored once, held once (twice as a Transpose, as the plan says), proved; every output has the bits it had."""
    source, out = graph_of(folder), tmp_path / "out" / graph_of(folder).name
    outcome = api.plan_graph_dedup(folder, head_form=form).execute(out.parent)
    assert outcome.verified and all(proof.proved for proof in outcome.proofs)
    if outcome.plan.changed:
        (matrix,) = outcome.plan.matrices
        assert [count for _, count in outcome.proofs[0].copies] == [matrix.copies_promised]
    assert len(copies(out, embedding(source))) == 1
    for past in (0, 4):
        assert same_bits(outputs_of(source, past), outputs_of(out, past)), past


@pytest.mark.parametrize("folder", INT4, ids=lambda folder: folder.name)
def test_int4(tmp_path: Path, folder: Path) -> None:
    """The builder stores one int4 matrix, but a session holds two; after `dedup` it holds one, with the same bits."""
    source, out = graph_of(folder), tmp_path / "out" / "model.onnx"
    outcome = api.plan_graph_dedup(folder).execute(out.parent)
    assert outcome.verified and outcome.proofs[0].copies == (("lm_head.MatMul.weight_Q4", 1),)
    (matrix,) = outcome.plan.matrices
    assert matrix.kinds == ("quantised", "folded") and matrix.held_before - matrix.held_after == VOCABULARY * H // 2
    for past in (0, 4):
        assert same_bits(outputs_of(source, past), outputs_of(out, past)), past
    for path, held in ((source, 1), (out, 0)):
        (graph,) = api.inspect(path).checkpoint.graphs
        assert sum(latent.extra for latent in graph.latent) == held
        assert {(read.role, read.name) for read in graph.quantised} == {
            (role, "lm_head.MatMul.weight_Q4") for role in ("embedding", "head")
        }
    assert not api.plan_graph_dedup(out).plan.matrices


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, id=folder.name, marks=() if folder.name in UNTIED else pytest.mark.slow)
        for folder in FOLDERS
    ],
)
def test_untie(tmp_path: Path, folder: Path) -> None:
    """A head of its own after dedup, and still the same bits."""
    source, out = graph_of(folder), tmp_path / "twice" / graph_of(folder).name
    api.plan_graph_dedup(folder).execute(tmp_path / "once")
    assert api.plan_graph_untie(tmp_path / "once").execute(out.parent).verified
    assert len(copies(out, embedding(source))) == 2
    assert same_bits(outputs_of(source, 0), outputs_of(out, 0))


@pytest.mark.slow
def test_factors_of_real_heads(tmp_path: Path) -> None:
    """Gemma 2's soft-cap divides behind the head, T5 multiplies before it: both become the Gemm's alpha."""
    alphas = {"genai-gemma2": np.float32(1) / np.float32(30), "optimum-t5": np.float32(H**-0.5)}
    for name, alpha in alphas.items():
        api.plan_graph_dedup(exporters.HERE / name, head_form="gemm").execute(tmp_path / name)
        heads = [node for node in every_node(graph_of(tmp_path / name)) if node.op_type == "Gemm"]
        assert heads
        assert {attribute.f for node in heads for attribute in node.attribute if attribute.name == "alpha"} == {alpha}


def every_node(path: Path) -> list[onnx.NodeProto]:
    """The nodes of the graph and of its branches."""
    main = onnx.load(path, load_external_data=False).graph
    branches = [attribute.g for node in main.node for attribute in node.attribute if attribute.HasField("g")]
    return [node for graph in (main, *branches) for node in graph.node]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", fast_only(exporters.COMPARED, ["optimum-bert", "mobius-gpt2"]))
def test_parity(name: str) -> None:
    """Healthy graphs of other exporters pass: every weight found, split too, and no more error than torch's own."""
    pytest.importorskip("torch")
    report = api.parity(graph_of(exporters.HERE / name), exporters.HERE / "checkpoints" / name, provider="cpu")
    assert str(report.verdict) == "passed", [gate.sentence for gate in report.gates if not gate.passed]
    assert report.identity is not None
    assert report.identity.found == report.identity.tensors
    assert ("split" in report.identity.how) == (name == "mobius-gpt2")  # c_attn in three


@pytest.mark.slow
def test_a_cut_table_and_another_epsilon(tmp_path: Path) -> None:
    """mobius' OPT has norms with 1e-6, and a position table without the rows before position 0: that is no damage."""
    pytest.importorskip("torch")
    source, checkpoint = graph_of(exporters.HERE / "mobius-opt"), exporters.HERE / "checkpoints" / "mobius-opt"
    found = api.parity(source, checkpoint, provider="cpu")
    norm = "a norm of the graph has epsilon 1e-06, but the model's class has 1e-05"
    assert found.reason == f"{norm}; with it, the worst case passes"
    failed = {gate.name for gate in found.gates if not gate.passed}
    assert {"rms_ratio", "steps_rms_ratio"} <= failed and "weights" not in failed
    model = onnx.load(source)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-5
    onnx.save(model, tmp_path / "model.onnx")
    report = api.parity(tmp_path / "model.onnx", checkpoint, provider="cpu")
    assert (str(report.verdict), [gate.name for gate in report.gates if not gate.passed]) == ("passed", [])
    assert report.identity is not None
    assert report.identity.how["without 2 rows before position 0"] == 1


@pytest.mark.parametrize("name", ["optimum-t5", "optimum-bart"])
def test_a_decoder_of_a_pair_is_not_run(name: str) -> None:
    """A merged decoder takes what another graph computes: no verdict about the model, exit 2, and the reason."""
    pytest.importorskip("torch")
    result = run("parity", graph_of(exporters.HERE / name), exporters.HERE / "checkpoints" / "optimum-llama", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["verdict"], found["structure"]) == (2, "not_run", None)
    assert "is the decoder of a pair: another graph computes its encoder_hidden_states" in found["reason"]
    assert "tieconv parity DIR MODEL" in found["hint"]
