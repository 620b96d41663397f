"""`export --quantise`: embedding and head read one quantised matrix, and one float matrix at a time is in memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import tieconv as api
from tests.cli.run import refused, run
from tests.lazy import carry_out, quantise, quantised_weights, torch, validate
from tests.onnx import nodes
from tests.onnx.exported import ROWS, WIDTH, Exported
from tests.onnx.graphs import same_bits, session, tensors
from tests.onnx.test_memory import WATCHED
from tieconv.checkpoint.graph_plan import HeadForm
from tieconv.checkpoint.results.parity import Loss, Quantised, QuantisedWeight
from tieconv.reference.model import load
from tieconv.reporters.text.parity_text import quantised_facts

FIXTURES = Path(__file__).parents[3] / "fixtures"
MODELS = ("llama", "gpt2", "bert", "t5")
CODES = {"int4": ROWS * WIDTH // 2, "int8": ROWS * WIDTH, "dynamic-int8": ROWS * WIDTH}


def made(exported: Exported, folder: Path, scheme: str) -> tuple[quantise.Quantisation, Path]:
    """The exporter's graph, quantised and shared as an export does."""
    shutil.copytree(exported.graph.parent, folder / "raw")
    found = quantise.quantise(folder / "raw", folder / "quantised", quantise.Scheme(scheme))
    shared = carry_out.share(folder / "quantised", folder / "out", HeadForm.GEMM)
    pairs = [matrix for matrix in shared.matrices if "quantised" in matrix.kinds]
    assert len(pairs) == (0 if scheme == "dynamic-int8" else len(found.tied))  # also for T5, which looks up twice
    return found, folder / "out"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scheme", CODES)
@pytest.mark.parametrize("name", MODELS)
def test_one_quantised_matrix(exported: Callable[..., Exported], tmp_path: Path, name: str, scheme: str) -> None:
    """Once in the file, once in a session, for embedding and head. No float copy and no float product stays."""
    source = exported(name)
    found, out = made(source, tmp_path, scheme)
    (codes,) = found.tied
    stored = dict(tensors(out / "model.onnx"))
    assert stored[codes].nbytes == CODES[scheme]
    assert not [
        key for key, array in stored.items() if key != codes and ROWS in array.shape and array.size >= ROWS * WIDTH // 2
    ]
    proof = quantise.prove_once(out, "model.onnx", found.tied)
    assert proof.proved and proof.copies == ((codes, 1),)
    nodes = onnx.load(out / "model.onnx").graph.node
    constant = {key for key, array in stored.items() if array.dtype.kind == "f" and array.ndim > 1}
    assert not [node for node in nodes if node.op_type in ("MatMul", "Gemm") and constant & set(node.input)]
    assert {why for _, why in found.float_matrices} <= {"it is a lookup table that no head reads"}
    assert (name in ("gpt2", "bert")) == bool(found.float_matrices)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scheme", CODES)
def test_the_weights_are_correct(exported: Callable[..., Exported], tmp_path: Path, scheme: str) -> None:
    """Every matrix is as near to the checkpoint as round to nearest; the others are bit for bit the checkpoint's."""
    source = exported("llama")
    _, out = made(source, tmp_path, scheme)
    evidence = api.inspect(source.model)
    model = load(str(source.model), evidence.checkpoint.config_values, "float32")
    _, gates = validate.stored_quantised_gates(str(out / "model.onnx"), evidence, model)
    assert all(gate.passed for gate in gates), [gate.sentence for gate in gates]


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_the_shared_embedding_has_the_bits_of_two(
    exported: Callable[..., Exported], tmp_path: Path, scheme: str
) -> None:
    """The graph before the sharing, in which a session holds the matrix twice, gives the same bits."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    shutil.copytree(exported("bert").graph.parent, raw)
    quantise.quantise(raw, tmp_path / "quantised", quantise.Scheme(scheme))
    assert api.plan_graph_dedup(tmp_path / "quantised").execute(out).verified
    feeds = {
        "input_ids": np.random.default_rng(0).integers(0, ROWS, (2, 7)),
        "attention_mask": np.ones((2, 7), np.int64),
        "token_type_ids": np.zeros((2, 7), np.int64),
    }
    before, after = (
        session(folder / "model.onnx", optimise=True).run(None, feeds) for folder in (tmp_path / "quantised", out)
    )
    assert same_bits(before, after)


def test_a_float_table_is_named(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """An untied embedding stays float, and the export says so."""
    found, _ = made(exported("llama-untied"), tmp_path, quantise.Scheme.INT4)
    assert found.tied == () and found.notes == (
        "model.embed_tokens.weight stays float: it is a lookup table that no head reads",
    )


def test_the_command(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """The plan names the scheme and the form of the head; the result is proved, and OUT says how it was made."""
    source = exported("llama")
    out = tmp_path / "out"
    result = run("export", source.model, "-o", out, "--quantise", "int4", "--no-parity")
    assert result.exit_code == 0, result.stderr
    assert "writes every head as MatMulNBits, so --head-form has no effect" in " ".join(result.stderr.split())
    assert "proved: a session holds lm_head.weight_head_Q4 once" in result.stdout
    document = json.loads((out / "export.json").read_text())["tieconv"]
    assert document["quantise"] == "int4" and document["session"][0]["copies"] == {"lm_head.weight_head_Q4": 1}
    (graph,) = api.inspect(out).checkpoint.graphs
    assert {(read.role, read.name) for read in graph.quantised} == {
        ("embedding", "lm_head.weight_head_Q4"),
        ("head", "lm_head.weight_head_Q4"),
    }


def test_a_small_model_in_a_process(tmp_path: Path) -> None:
    """onnxscript folds the transpose of a small head. Both are one matrix again, and no library logs to the screen."""
    words = [sys.executable, "-m", "tieconv", "export", FIXTURES / "models" / "llama-tied", "-o", tmp_path / "out"]
    ended = subprocess.run([*words, "--quantise", "int4", "--no-parity"], text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "once" in next(line for line in ended.stdout.splitlines() if "proved:" in line)
    assert "INFO" not in ended.stderr + ended.stdout


def test_the_root_logger_is_as_it_was() -> None:
    """onnxruntime's quantiser configures it when it is imported."""
    script = """
import logging
from tieconv.reference.packages import silenced
with silenced():
    import onnxruntime.quantization.matmul_nbits_quantizer
    print("hidden")
    inside = len(logging.root.handlers)
assert inside and not logging.root.handlers, logging.root.handlers
assert logging.root.level == logging.WARNING
assert logging.root.manager.disable == logging.NOTSET
"""
    ended = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_dynamic_int8_is_float32_only(exported: Callable[..., Exported]) -> None:
    """DynamicQuantizeLinear has no float16 form; the hint names what works."""
    source = exported("llama")
    result = refused("export", source.model, "--quantise", "dynamic-int8", "--precision", "fp16")
    assert "dynamic-int8 quantises activations of float32 only, not fp16" in str(result)


@pytest.mark.slow
def test_the_export_is_measured(exported: Callable[..., Exported], tmp_path: Path) -> None:
    """OUT is written only after parity of the quantised graph passed, with activations in int8 too."""
    out = tmp_path / "out"
    result = run("export", exported("llama").model, "-o", out, "--quantise", "dynamic-int8", "--provider", "cpu")
    assert result.exit_code == 0, result.stderr
    report = json.loads((out / "parity.json").read_text())
    assert report["verdict"] == "passed"
    assert {weight["operator"] for weight in report["quantised"]["weights"]} == {"MatMulInteger", "DequantizeLinear"}


def test_a_fused_graph_is_not_quantised(exported: Callable[..., Exported]) -> None:
    """Its head is a FusedMatMul, which the quantisers skip."""
    result = refused("export", exported("llama").model, "--quantise", "int4", "--fuse", "cpu")
    assert "skip the head of a graph that is fused for cpu" in str(result)


def test_the_largest_error_is_beside_that_of_the_known_good_quantiser() -> None:
    """The row names the weight's own pair of errors, not the largest of each."""
    weights = tuple(
        QuantisedWeight(name, (name,), "MatMulNBits", 4, 32, True, error, good, 1.0)
        for name, error, good in (("a", 0.01, 0.9), ("b", 0.07, 0.06))
    )
    rows = dict(quantised_facts(Quantised(weights, (), Loss(0.5, 0.25), None)))
    assert rows["quantised"] == "2 weights: 2 of MatMulNBits with 4 bits"
    assert rows["error"] == "7.00e-02 at most (relative RMS), 6.00e-02 by the known-good quantiser"
    assert rows["loss"] == "top-1 50.0%, KL 2.50e-01"


SIDE = 1536
QUANTISE = """
from pathlib import Path
from tieconv.onnx.quantise import quantise
from tieconv.onnx.quantise import Scheme
quantise(Path(sys.argv[1]), Path(sys.argv[2]), Scheme.INT4)
print(peak)
"""


def chain(folder: Path, count: int) -> Path:
    """A graph of ``count`` products with transposed matrices of 9 MiB."""
    folder.mkdir()
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    gemms = [nodes.op("Gemm", f"x{number} w{number}", f"x{number + 1}", transB=1) for number in range(count)]
    tensors = {f"w{number}": matrix for number in range(count)}
    ends = [nodes.value(f"x{number}", ["b", SIDE]) for number in (0, count)]
    nodes.save(nodes.model(gemms, ends[:1], ends[1:], tensors, opset=18), folder / "model.onnx", external=True)
    return folder


def peak(raw: Path) -> int:
    """MiB of anonymous memory of the quantiser."""
    watched = WATCHED[: WATCHED.index("from tieconv.cli")] + QUANTISE
    done = subprocess.run(
        [sys.executable, "-c", watched, raw, raw.with_name(f"{raw.name}-new")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1]) >> 10


@pytest.mark.slow
def test_the_quantiser_holds_one_float_matrix(tmp_path: Path) -> None:
    """Sixteen more matrices are 144 MiB in float32, 20 MiB as codes and scales."""
    assert peak(chain(tmp_path / "many", 18)) - peak(chain(tmp_path / "few", 2)) < 60


def test_the_comparison_holds_one_float_matrix() -> None:
    """The peak of numpy is a few blocks of one matrix, not the twelve matrices of the model."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(12)))
    size = 4 * 512 * 512

    def quantised(number: int, layer: Any) -> quantised_weights.Matrix:
        def values() -> Any:
            return quantised_weights.round_to_nearest(
                layer.weight.detach().numpy(), quantised_weights.Rounding(4, 32, symmetric=True)
            )

        return quantised_weights.Matrix(
            f"m{number}",
            "MatMulNBits",
            (512, 512),
            values,
            quantised_weights.Rounding(4, 32, symmetric=True),
            False,
            True,
        )

    matrices = [quantised(number, layer) for number, layer in enumerate(layers)]
    reference: Any = SimpleNamespace(model=layers)
    weights = [layer.weight.detach().clone() for layer in layers]
    tracemalloc.start()
    try:
        compared = quantised_weights.compare(matrices, reference)
        quantised_weights.put(reference, compared.replaced, good=True)
        highest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert highest < 12 * 2 * size  # twelve in float64, for one of the three forms
    assert [weight.parameters for weight in compared.weights] == [(f"{number}.weight",) for number in range(12)]
    assert all(abs(weight.error - weight.known_good_error) < 1e-6 for weight in compared.weights)
    for layer, weight in zip(layers, weights, strict=True):
        good = quantised_weights.round_to_nearest(weight.numpy(), quantised_weights.Rounding(4, 32, symmetric=True))
        assert np.array_equal(layer.weight.detach().numpy(), good)
