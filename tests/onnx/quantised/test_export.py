"""`export --quantise`: embedding and head read one quantised matrix, in the file and in a session."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import tieconv as api
from tests.cli.run import refused, run
from tests.onnx.exported import ROWS, WIDTH, Exported
from tests.onnx.sessions import same_bits, session
from tests.onnx.stored import tensors
from tieconv.checkpoint.graph_plan import HeadForm
from tieconv.onnx.export.carry_out import share
from tieconv.onnx.parity.validate import stored_quantised_gates
from tieconv.onnx.quantise import Quantisation, Scheme, prove_once, quantise
from tieconv.reference import load

MODELS = ("llama", "gpt2", "bert", "t5")
CODES = {Scheme.INT4: ROWS * WIDTH // 2, Scheme.INT8: ROWS * WIDTH, Scheme.DYNAMIC: ROWS * WIDTH}


def made(exported: Exported, folder: Path, scheme: Scheme) -> tuple[Quantisation, Path]:
    """The exporter's graph, quantised and shared as an export does."""
    shutil.copytree(exported.graph.parent, folder / "raw")
    found = quantise(folder / "raw", folder / "quantised", scheme)
    shared = share(folder / "quantised", folder / "out", HeadForm.GEMM)
    pairs = [matrix for matrix in shared.matrices if "quantised" in matrix.kinds]
    assert len(pairs) == (0 if scheme is Scheme.DYNAMIC else len(found.tied))  # also for T5, which looks up twice
    return found, folder / "out"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("name", MODELS)
def test_one_quantised_matrix(exported: Callable[..., Exported], tmp_path: Path, name: str, scheme: Scheme) -> None:
    """Once in the file, once in a session, for embedding and head. No float copy and no float product stays."""
    source = exported(name)
    found, out = made(source, tmp_path, scheme)
    (codes,) = found.tied
    stored = dict(tensors(out / "model.onnx"))
    assert stored[codes].nbytes == CODES[scheme]
    assert not [
        key for key, array in stored.items() if key != codes and ROWS in array.shape and array.size >= ROWS * WIDTH // 2
    ]
    proof = prove_once(out, "model.onnx", found.tied)
    assert proof.proved and proof.copies == ((codes, 1),)
    nodes = onnx.load(out / "model.onnx").graph.node
    constant = {key for key, array in stored.items() if array.dtype.kind == "f" and array.ndim > 1}
    assert not [node for node in nodes if node.op_type in ("MatMul", "Gemm") and constant & set(node.input)]
    assert {why for _, why in found.float_matrices} <= {"it is a lookup table that no head reads"}
    assert (name in ("gpt2", "bert")) == bool(found.float_matrices)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scheme", Scheme)
def test_the_weights_are_correct(exported: Callable[..., Exported], tmp_path: Path, scheme: Scheme) -> None:
    """Every matrix is as near to the checkpoint as round to nearest; the others are bit for bit the checkpoint's."""
    source = exported("llama")
    _, out = made(source, tmp_path, scheme)
    evidence = api.inspect(source.model)
    model = load(str(source.model), evidence.checkpoint.config_values, "float32")
    _, gates = stored_quantised_gates(str(out / "model.onnx"), evidence, model)
    assert all(gate.passed for gate in gates), [gate.sentence for gate in gates]


@pytest.mark.parametrize("scheme", [Scheme.INT4, Scheme.INT8])
def test_the_shared_embedding_has_the_bits_of_two(
    exported: Callable[..., Exported], tmp_path: Path, scheme: Scheme
) -> None:
    """The graph before the sharing, in which a session holds the matrix twice, gives the same bits."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    shutil.copytree(exported("bert").graph.parent, raw)
    quantise(raw, tmp_path / "quantised", scheme)
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
    found, _ = made(exported("llama-untied"), tmp_path, Scheme.INT4)
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
