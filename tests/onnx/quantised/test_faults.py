"""Planted faults in quantised graphs fail parity, and healthy graphs of three quantisers pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tieconv as api
from fixtures import exporters
from tests.cli.run import run
from tests.lazy import gptq, matmul_nbits_quantizer as nbits, quantised_weights, validate as gates
from tests.schemas import validate
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Gate, Loss, Quantised, Verdict
from tieconv.errors import RefusedError
from tieconv.reference.model import load

MODEL = exporters.HERE / "checkpoints" / "genai-qwen2"
FLOAT = exporters.HERE / "genai-qwen2" / "model.onnx"
INT4 = exporters.HERE / "genai-qwen2-int4" / "model.onnx"
HEAD, LAYER, V = "lm_head.MatMul.weight", "model.layers.0.mlp.up_proj.MatMul.weight", 88
Stored = dict[str, np.ndarray]


@pytest.mark.parametrize("infinite", ["graph", "known-good quantiser", "reference", "all"])
def test_an_infinite_perplexity_passes_no_gate(infinite: str) -> None:
    """A token with probability 0 costs infinitely many nats: nothing can be compared with that."""

    def nats(name: str) -> float:
        return 800.0 if infinite in (name, "all") else 2.0

    graph, good = (Loss(1.0, 0.0, gates._perplexity(nats(name))) for name in ("graph", "known-good quantiser"))
    figures = Quantised((), (), graph, good, gates._perplexity(nats("reference")), 9)
    (gate,) = (gate for gate in gates.loss_gates(figures, 9) if gate.name == "perplexity")
    assert not gate.passed


def of_ort(path: Path, bits: int, *, symmetric: bool, hqq: bool = False) -> Path:
    """The builder's float graph, quantised by ONNX Runtime; its embedding stays float."""
    how = {"algo_config": nbits.HQQWeightOnlyQuantConfig(block_size=32, bits=bits)} if hqq else {}
    quantizer = nbits.MatMulNBitsQuantizer(str(FLOAT), bits=bits, block_size=32, is_symmetric=symmetric, **how)
    quantizer.process()
    onnx.save(quantizer.model.model, path)
    return path


def weight_gates(graph: Path) -> dict[str, Gate]:
    evidence = api.inspect(MODEL)
    model = load(str(MODEL), evidence.checkpoint.config_values, "float32")
    _, judged = gates.stored_quantised_gates(str(graph), evidence, model)
    return {gate.name: gate for gate in judged}


QUANTISERS: dict[str, Callable[[Path], Path]] = {
    "genai int4": lambda _: INT4,
    "ORT int4": lambda path: of_ort(path, 4, symmetric=True),
    "ORT int4, zero points": lambda path: of_ort(path, 4, symmetric=False),
    "ORT int8": lambda path: of_ort(path, 8, symmetric=True),
    "ORT int8, zero points": lambda path: of_ort(path, 8, symmetric=False),
    "ORT GPTQ": lambda path: gptq.by_onnxruntime(path),
    "GPTQ, zero points": lambda path: gptq.with_zero_points(path),
    "HQQ int4": lambda path: of_ort(path, 4, symmetric=False, hqq=True),
}


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # in ONNX Runtime's HQQ
@pytest.mark.parametrize("name", QUANTISERS)
def test_healthy_weights_pass(tmp_path: Path, name: str) -> None:
    """Each quantised matrix stands beside round to nearest, packed projections included."""
    gates = weight_gates(QUANTISERS[name](tmp_path / "model.onnx"))
    assert all(gate.passed for gate in gates.values()), gates
    value = gates["quantised_weights"].value
    assert value is not None and 0.2 < value < 2


def scale_doubled(stored: Stored, weight: str) -> None:
    stored[f"{weight}_scales"][7, 0] *= 2


def zero_point_off_by_one(stored: Stored, weight: str) -> None:
    zeros = stored[f"{weight}_zero_points"]
    zeros[7, 0] += 1 if zeros[7, 0] & 15 < 15 else -1


def rows_swapped(stored: Stored, weight: str) -> None:
    codes = stored[f"{weight}_Q4"]
    codes[[3, 40]] = codes[[40, 3]]


def other_matrix(stored: Stored, weight: str) -> None:
    """The codes of another matrix of these sides: those of the head in another order."""
    codes = stored[f"{weight}_Q4"]
    codes[:] = codes[np.random.default_rng(0).permutation(len(codes))]


FAULTS = [scale_doubled, zero_point_off_by_one, rows_swapped, other_matrix]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("weight", fast_only([HEAD, LAYER], [HEAD]))
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("quantiser", ["ORT int4, zero points", "GPTQ, zero points"])
def test_planted_faults_fail(tmp_path: Path, quantiser: str, fault: Callable[[Stored, str], None], weight: str) -> None:
    """One scale, one zero point, two rows, a matrix from elsewhere: in the head and in a layer."""
    path = QUANTISERS[quantiser](tmp_path / "model.onnx")
    model = onnx.load(path)
    stored = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in model.graph.initializer}
    stored = {name: array for name, array in stored.items() if name.startswith(weight)}
    assert stored
    fault(stored, weight)
    for tensor in model.graph.initializer:
        if tensor.name in stored:
            tensor.CopyFrom(numpy_helper.from_array(stored[tensor.name], tensor.name))
    onnx.save(model, path)
    gate = weight_gates(path)["quantised_weights"]
    assert not gate.passed and (weight in gate.sentence)


@pytest.mark.slow
def test_a_healthy_int4_graph_passes_as_a_whole(tmp_path: Path) -> None:
    """With int8 activations too, whose rounding the known-good figures contain; the JSON has every figure."""
    out = tmp_path / "report.html"
    result = run("parity", INT4, MODEL, "--quantised", "--provider", "cpu", "--json", "--html", out)
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["verdict"] == "passed", report["gates"]
    validate(report, "parity")
    found = report["quantised"]
    assert len(found["weights"]) == 6 and found["unmatched"] == []
    packed = next(weight for weight in found["weights"] if "qkv" in weight["name"])
    assert [name.split(".")[-2] for name in packed["parameters"]] == ["q_proj", "k_proj", "v_proj"]
    assert 0.5 < found["graph"]["kl"] / found["known_good"]["kl"] < 1.5
    assert {"rms_ratio", "kl", "top1", "perplexity", "quantised_weights"} <= {gate["name"] for gate in report["gates"]}
    assert out.exists()


def test_zero_points_off_by_one_everywhere_fail() -> None:
    """A median above that of every correct quantiser is no allowance."""
    weight = np.random.default_rng(0).normal(size=(64, 32))
    good = quantised_weights.round_to_nearest(weight, quantised_weights.Rounding(4, 32, symmetric=False)) - weight
    step = (weight.max(1) - weight.min(1))[:, None] / 15

    def rms(error: np.ndarray) -> np.ndarray:
        return np.sqrt(np.square(error).mean(1))

    assert quantised_weights.worst_quotient(rms(good + step), rms(good)) > gates.BLOCK_LIMIT
    assert quantised_weights.worst_quotient(rms(1.5 * good), rms(good)) == pytest.approx(1)
    assert quantised_weights.worst_quotient(rms(1.5 * good)[:16], rms(good)[:16]) == pytest.approx(1.5)


@pytest.mark.parametrize("quantise", fast_only(["by_onnxruntime", "with_zero_points"], ["with_zero_points"]))
def test_a_graph_of_gptq_passes_as_a_whole(tmp_path: Path, quantise: str) -> None:
    """Its weights differ more than those of round to nearest, and the logits do not lose twice as much."""
    report = api.parity(getattr(gptq, quantise)(tmp_path / "model.onnx"), MODEL, provider="cpu", quantised=True)
    assert report.verdict is Verdict.PASSED, report.gates
    assert report.quantised is not None
    assert all(weight.error > weight.known_good_error for weight in report.quantised.weights)


@pytest.mark.slow
def test_a_fault_of_the_graph_is_not_hidden_by_the_loss(tmp_path: Path) -> None:
    """A wrong epsilon under int4: weights and loss are as usual, but the graph's own weights give other logits."""
    model = onnx.load(INT4)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-4
    onnx.save(model, tmp_path / "model.onnx")
    report = api.parity(tmp_path / "model.onnx", MODEL, provider="cpu", quantised=True)
    failed = {gate.name for gate in report.gates if not gate.passed}
    assert report.verdict is Verdict.FAILED and "rms_ratio" in failed
    assert not {"quantised_weights", "kl", "top1", "perplexity"} & failed


@pytest.mark.parametrize(("ids", "why"), [([1] * 9, "holds 9 tokens, but at least 64"), ([V] * 99, "holds the id 88")])
def test_unusable_tokens_are_refused(tmp_path: Path, ids: list[int], why: str) -> None:
    """The error names the file and what is wrong with it."""
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(ids))
    result = run("parity", INT4, MODEL, "--quantised", "--provider", "cpu", "--text", path)
    assert result.exit_code == 2 and why in result.stderr


def test_a_float_graph_is_refused() -> None:
    """There is nothing to dequantise; the hint is the command without the option."""
    with pytest.raises(RefusedError, match="it has no quantised weight"):
        api.parity(FLOAT, MODEL, provider="cpu", quantised=True)
    assert run("parity", FLOAT, MODEL, "--text", "x").exit_code == 2


@pytest.mark.slow
def test_a_budget() -> None:
    """Fewer batches of a quantised graph, and which ones are left out."""
    report = api.parity(INT4, MODEL, quantised=True, budget="0s")
    assert report.verdict is Verdict.PASSED
    assert report.fed is not None and report.fed.budget == 0 and sum(report.fed.left_out.values()) > report.fed.cases
