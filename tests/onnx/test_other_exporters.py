"""Graphs that optimum, mobius and onnxruntime-genai wrote: once stored, once held, the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tieconv as api
from fixtures import exporters
from tests.cli.run import run
from tests.onnx.graphs import copies, same_bits, session, tensors
from tests.slow import fast_only

ALL = sorted(path.parent for path in exporters.HERE.rglob("*.onnx"))
FOLDERS = [folder for folder in ALL if "int4" not in folder.name]
INT4 = [folder for folder in ALL if "int4" in folder.name]
UNTIED = ("optimum-t5", "mobius-gpt2", "merged-llama", "genai-gemma2")
"""Those that every run unties, and shares in each form."""
V, H = 88, 32
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
            "input_ids": lambda shape=shape: rng.integers(0, V, shape),
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


def outputs(path: Path, past: int) -> list[np.ndarray]:
    """Every output; of a graph with a sliding cache the logits, since it returns memory that it never wrote."""
    made = session(path, optimise=True)
    sliding = any("sliding" in str(side) for value in made.get_inputs() for side in value.shape)
    return made.run(["logits"] if sliding else None, feed(made, past))


def embedding(path: Path) -> np.ndarray:
    """The tied matrix as [V, H]."""
    matrix = next(array for _, array in tensors(path) if sorted(array.shape) == [H, V])
    return matrix if matrix.shape == (V, H) else np.ascontiguousarray(matrix.T)


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
        assert states == ["canonical", "transposed"] and tie["bytes_wasted"] == 4 * V * H
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
        assert same_bits(outputs(source, past), outputs(out, past)), past


@pytest.mark.parametrize("folder", INT4, ids=lambda folder: folder.name)
def test_int4(tmp_path: Path, folder: Path) -> None:
    """The builder stores one int4 matrix, but a session holds two; after `dedup` it holds one, with the same bits."""
    source, out = graph_of(folder), tmp_path / "out" / "model.onnx"
    outcome = api.plan_graph_dedup(folder).execute(out.parent)
    assert outcome.verified and outcome.proofs[0].copies == (("lm_head.MatMul.weight_Q4", 1),)
    (matrix,) = outcome.plan.matrices
    assert matrix.kinds == ("quantised", "folded") and matrix.held_before - matrix.held_after == V * H // 2
    for past in (0, 4):
        assert same_bits(outputs(source, past), outputs(out, past)), past
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
    assert same_bits(outputs(source, 0), outputs(out, 0))


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
    assert (
        found.reason
        == "a norm of the graph has epsilon 1e-06, but the model's class has 1e-05; with it, the worst case passes"
    )
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
