"""Every architecture of docs/export.md: what is committed, and the exports themselves (``-m slow``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import tieconv
from tests.cli.run import run
from tests.lazy import carry_out, torch
from tests.onnx.export_table import FILE, make, optimised
from tests.onnx.exported import ARCHITECTURES
from tests.onnx.graphs import copies

NAMES = list(ARCHITECTURES)
PAIRS = {"t5", "bart"}
"""Two graphs: a session of each holds the matrix once."""
EXPERTS = {"mixtral", "qwen2-moe"}
"""In fp16 two experts may be within rounding of each other, and torch and the graph choose differently."""
CASES = [(name, p) for name in NAMES for p in ("fp32", "fp16") if not (name in EXPERTS and p == "fp16")]


def saved(name: str, directory: Path) -> np.ndarray:
    """The model in ``directory``; its embedding."""
    model = make(name)
    model.save_pretrained(directory)
    matrix: np.ndarray = model.get_input_embeddings().weight.detach().numpy()
    return matrix


def test_what_is_committed() -> None:
    """The published table has every architecture, each passed in both precisions with one copy in a session."""
    measured = json.loads(FILE.read_text(encoding="utf-8"))
    assert [row["name"] for row in measured["rows"]] == NAMES
    assert len(NAMES) >= 12
    for row in measured["rows"]:
        for precision in (precision for name, precision in CASES if name == row["name"]):
            found = row[precision]
            sessions = 2 if row["name"] in PAIRS else 1
            assert (found.get("verdict"), found.get("stored")) == ("passed", 1), row["name"]
            assert found.get("session") == sessions, row["name"]
            assert all(count == 1 for count in found["proved"].values())
        assert row["fp32"]["bytes"] <= row["transformers"]["bytes"]
    assert [row["form"] for row in measured["forms"]] == ["two copies", "gemm", "fused", "transpose"]
    two, gemm = measured["forms"][:2]
    assert 2 * gemm["disk"] == two["disk"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), CASES)
def test_each_architecture(tmp_path: Path, name: str, precision: str) -> None:
    """Exported with parity passed; the embedding stored once, and held once by a session."""
    matrix = saved(name, tmp_path / "model")
    result = run(f"export --provider cpu --precision {precision}", tmp_path / "model", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    matrix = matrix.astype("f2") if precision == "fp16" else matrix
    for graph in graphs(tmp_path / "out"):
        assert len(copies(graph, matrix)) == 1
        assert optimised(graph, matrix) == 1


def graphs(out: Path) -> list[Path]:
    """The decoder last, if there are two."""
    return sorted(out.glob("*.onnx"), reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fused", "transpose"])
def test_head_forms(tmp_path: Path, form: str) -> None:
    """The other forms pass too; a session folds a Transpose into a second copy, and the plan says so."""
    matrix = saved("llama", tmp_path / "model")
    outcome = tieconv.export(tmp_path / "model", tmp_path / "out", head_form=form, provider="cpu")
    assert outcome.executed
    assert optimised(tmp_path / "out" / "model.onnx", matrix) == (2 if form == "transpose" else 1)
    assert any("twice" in note for note in outcome.plan.notes) == (form == "transpose")


FUSED = [
    ("llama", "cpu", {"RotaryEmbedding", "SkipSimplifiedLayerNormalization"}, False),
    ("llama", "cuda", {"MultiHeadAttention", "RotaryEmbedding"}, False),
    *(
        pytest.param(name, provider, operators, True, marks=pytest.mark.slow)
        for name, provider, operators in [
            ("qwen2", "cuda", {"MultiHeadAttention"}),
            ("gemma2", "cpu", {"RotaryEmbedding"}),
            ("gpt2", "cpu", {"SkipLayerNormalization"}),
            ("gpt2", "cuda", {"MultiHeadAttention"}),
            ("bert", "cpu", {"BiasGelu"}),
            ("bert", "cuda", {"MultiHeadAttention", "BiasGelu"}),
            ("t5", "cpu", {"SkipSimplifiedLayerNormalization"}),
        ]
    ),
]


@pytest.mark.parametrize(("name", "provider", "operators", "parity"), FUSED)
def test_fused(tmp_path: Path, name: str, provider: str, operators: set[str], parity: bool) -> None:
    """`--fuse` writes ONNX Runtime's operators for the provider, and the matrix stays one, in a session too."""
    matrix = saved(name, tmp_path / "model")
    out = tmp_path / "out"
    result = run(
        "export --provider cpu --json",
        tmp_path / "model",
        "-o",
        out,
        "--fuse",
        provider,
        *([] if parity else ["--no-parity"]),
    )
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["fuse"], document["head_form"]) == (provider, "fused")
    section = json.loads((out / "export.json").read_text())["tieconv"]
    assert (section["fuse"], section["parity"]["verdict"]) == (provider, "passed" if parity else "not_run")
    path = graphs(out)[-1]
    graph = onnx.load(path, load_external_data=False).graph
    made = {node.op_type for node in graph.node if node.domain == "com.microsoft"}
    assert made >= operators | {"FusedMatMul"}
    assert optimised(path, matrix) == 1


def test_not_fused(tmp_path: Path) -> None:
    """Without `--fuse` the plan names no provider and keeps the form of the head; another value is a usage error."""
    saved("llama", tmp_path / "model")
    document = json.loads(run("export --json --head-form transpose", tmp_path / "model").stdout)
    assert (document["fuse"], document["head_form"]) == (None, "transpose")
    assert "fused   for ONNX Runtime's cuda provider" in run("export --fuse cuda", tmp_path / "model").stdout
    assert run("export --fuse tpu", tmp_path / "model").exit_code == 2
    with pytest.raises(ValueError, match="fuse 'tpu' is not one of none, cpu, cuda"):
        tieconv.plan_export(tmp_path / "model", fuse="tpu")


@pytest.mark.slow
def test_bf16(tmp_path: Path) -> None:
    """bf16 on the CPU: not run, nothing written, exit 2; with --no-parity it is written, its weights proved."""
    saved("llama", tmp_path / "model")
    out = tmp_path / "out"
    result = run("export --precision bf16 --provider cpu", tmp_path / "model", "-o", out)
    assert result.exit_code == 2
    assert "bf16" in result.stderr
    assert not out.exists()
    assert run("export --precision bf16 --no-parity", tmp_path / "model", "-o", out).exit_code == 0
    section = json.loads((out / "export.json").read_text())["tieconv"]
    assert section["weights"]["found"] == section["weights"]["tensors"]
    assert section["session"][0]["proved"] is False


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 21, 23])
def test_opsets(tmp_path: Path, opset: int) -> None:
    """The opset that was asked for, and parity."""
    saved("llama", tmp_path / "model")
    outcome = tieconv.export(tmp_path / "model", tmp_path / "out", opset=opset, provider="cpu")
    assert outcome.executed
    assert json.loads((tmp_path / "out" / "export.json").read_text())["tieconv"]["opset"] == opset


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_on_a_gpu(tmp_path: Path, precision: str) -> None:
    """Measured on CUDA with nothing heavy on the CPU, bf16 too."""
    saved("llama", tmp_path / "model")
    outcome = tieconv.export(tmp_path / "model", tmp_path / "out", precision=precision, provider="cuda")
    assert outcome.parity is not None
    assert (str(outcome.parity.verdict), outcome.parity.provider.active) == ("passed", "CUDAExecutionProvider")


def test_the_guard_of_bart_is_put_back() -> None:
    """Only while an fp16 encoder-decoder is traced does `isfinite` answer for the clamp; then it is torch's own."""
    before = torch.isfinite
    model = make("bart")
    with carry_out.always_clamped(model):
        assert torch.isfinite is before
    with pytest.raises(KeyError), carry_out.always_clamped(model.half()):
        assert torch.isfinite(torch.zeros(1)).all() is False
        raise KeyError
    assert torch.isfinite is before
