"""The gate is itself tested: every healthy export passes, every planted fault fails, each by the gate meant for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tieconv
from tests.lazy import batches, bindings, passes, torch
from tests.onnx import faults
from tests.onnx.exported import Exported
from tests.onnx.planted import masks
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Parity, Verdict
from tieconv.reference.model import load_config
from tieconv.reporters.text.parity_text import render_parity

ORDINARY = (("llama", "float32"), ("gemma2", "float32"), ("bert", "float32"), ("gpt2", "float16"))

STORED = {"weights", "graph_weights"}
LOGITS = {"rms_ratio", "max_ratio"}


def failed(report: Parity) -> set[str]:
    return {gate.name for gate in report.gates if not gate.passed}


def healthy(made: Exported) -> Parity:
    report = tieconv.parity(made.graph, made.model, provider="cpu")
    assert report.verdict is Verdict.PASSED, failed(report)
    shapes = {(case.batch, case.sequence, case.past, case.padding) for case in report.cases}
    assert len(shapes) >= 8
    assert {case.seed for case in report.cases} == {0, 1, 2}
    assert any(case.sequence == 1 for case in report.cases) and any(case.padding for case in report.cases)
    assert report.identity is not None and report.identity.found == report.identity.tensors
    return report


@pytest.mark.parametrize(("name", "dtype"), fast_only(ORDINARY, ["bert"]))
def test_a_healthy_export_passes(exported, name: str, dtype: str) -> None:
    """Every gate passes, every tensor is found, over at least 8 shapes with 3 seeds each."""
    healthy(exported(name, dtype))


@pytest.mark.slow
def test_cached_steps_are_measured(exported) -> None:
    """A graph with a cache is fed 32 tokens one by one, and cases with a past are among the shapes."""
    made = exported("llama")
    report = tieconv.parity(made.graph, made.model, budget="full")
    steps = [case for case in report.cases if case.group == "cached steps"]
    assert [case.sequence for case in steps][-3:] == [32, 32, 32]
    assert {gate.name for gate in report.gates} >= {"steps_rms_ratio", "steps_max_ratio", "steps_flip_margin"}
    assert any(case.past for case in report.cases if case.group != "cached steps")
    assert report.fed is not None and (report.fed.steps, report.fed.left_out) == (3 * 32 + 8, {})


CHANGES = [
    ("llama", "float32", faults.eps, LOGITS),
    ("llama", "float32", faults.mask_dropped, LOGITS),
    ("llama", "float32", faults.rope, LOGITS),
    ("llama", "float32", faults.head_rows_swapped, LOGITS | {"graph_weights"}),
    ("llama", "float32", faults.head_rounded, LOGITS | {"graph_weights"}),
    ("llama", "float32", faults.caches_swapped, {"steps_rms_ratio", "rms_ratio"}),
    ("gemma2", "float32", faults.eps, LOGITS),
    ("gemma2", "float32", faults.softcap_dropped, LOGITS),
    ("bert", "float32", faults.gelu, LOGITS),
    ("bert", "float32", faults.layer_norm_eps, LOGITS),
    ("bert", "float32", faults.mask_dropped, LOGITS),
    ("bert", "float32", faults.bias_twice, LOGITS),
    ("bert", "float32", faults.head_rows_swapped, LOGITS | {"graph_weights"}),
    ("gpt2", "float16", faults.mask_dropped, LOGITS),
    ("gpt2", "float16", faults.head_rows_swapped, LOGITS | {"graph_weights"}),
    ("gpt2", "float16", faults.caches_swapped, {"steps_rms_ratio", "rms_ratio"}),
    ("bert", "float32", masks.blind_to_trailing, LOGITS),
    ("t5", "float32", masks.blind_to_trailing, LOGITS),
    ("bart", "float32", masks.blind_to_trailing, LOGITS),
    ("llama", "float32", masks.filled, LOGITS),
    ("llama", "float32", masks.leak_from(33), LOGITS),
    ("llama", "float32", masks.places_shifted_from(40), LOGITS),
    ("llama", "float32", masks.one_row(3), LOGITS),
    ("mistral-48", "float32", masks.window(48, 1 << 20), LOGITS | {"steps_rms_ratio"}),
]

FAST = {"bert-gelu", "bert-head_rows_swapped", "gpt2-head_rows_swapped", "t5-blind_to_trailing"}
"""One for each gate and each kind of graph."""


@pytest.mark.parametrize(
    ("name", "dtype", "fault", "gates"),
    [
        pytest.param(*row, id=name, marks=() if name in FAST else pytest.mark.slow)
        for row in CHANGES
        if (name := f"{row[0]}-{row[2].__qualname__}")
    ],
)
def test_a_planted_fault_fails(
    exported: Callable[..., Exported], tmp_path: Path, name: str, dtype: str, fault: faults.Fault, gates: set[str]
) -> None:
    """The verdict is failed by the gates that must see the fault; only stored faults touch the weight gates."""
    made = exported(name, dtype)
    graph = faults.plant(made.graph, fault, tmp_path / "model.onnx")
    report = tieconv.parity(graph, made.model, provider="cpu")
    assert report.verdict is Verdict.FAILED
    assert gates <= failed(report)
    assert failed(report) & STORED == gates & STORED


@pytest.mark.slow
def test_a_full_budget_feeds_all_positions_and_more_rows(exported, tmp_path: Path) -> None:
    """Faults that begin at position 200 of 256, and at the eighth row. By default the report says what was fed."""
    made = exported("llama-256")
    by_default = tieconv.parity(made.graph, made.model, provider="cpu").fed
    assert by_default is not None and (by_default.tokens, by_default.longest, by_default.rows) == (144, 256, 6)
    assert dict(by_default.left_out) == {"left padding": 2, "all positions": 1, "past": 1}
    late = {
        "leak": masks.leak_from(200),
        "positions": masks.places_shifted_from(200),
        "cache": masks.cache_cut(150),
        "rows": masks.one_row(6),
    }
    healthy = tieconv.parity(made.graph, made.model, provider="cpu", budget="full")
    assert healthy.verdict is Verdict.PASSED and healthy.fed is not None
    assert (healthy.fed.tokens, healthy.fed.rows, dict(healthy.fed.left_out)) == (256, 16, {})
    assert "up to 256 of the model's 256 positions and 16 rows" in render_parity(healthy)
    for name, fault in late.items():
        graph = faults.plant(made.graph, fault, tmp_path / f"{name}.onnx")
        report = tieconv.parity(graph, made.model, provider="cpu", budget="full")
        assert report.verdict is Verdict.FAILED and failed(report) >= {"case_ratio", "rms_ratio"}, name


@pytest.mark.parametrize("value", fast_only([np.nan, 0.0], [0.0]))
def test_a_row_that_is_never_fed_is_seen(exported, tmp_path: Path, value: float) -> None:
    """A corrupted embedding row that no random batch feeds fails by the weights and by the lookup of every id."""
    made = exported("llama")
    work = passes.Work(bindings.Kind.CACHED, load_config(str(made.model)), types=False)
    fed = torch.cat([work.batch(cell).ids.flatten() for cell in work.cells]).unique().tolist()
    row = next(row for row in range(batches.PROMPT, work.config.vocab_size) if row not in fed)
    graph = faults.plant(made.graph, faults.embedding_row(row, value), tmp_path / f"{value}.onnx")
    report = tieconv.parity(graph, made.model, provider="cpu")
    assert report.verdict is Verdict.FAILED
    assert {"graph_weights", "token_lookup"} <= failed(report)


@pytest.mark.parametrize(("axis", "what"), [(0, "batch axis (0)"), (1, "sequence axis (1)")])
def test_a_frozen_axis_is_named(exported, tmp_path: Path, axis: int, what: str) -> None:
    """A graph that takes one length only fails, with the axis, the input and the length."""
    made = exported("llama")
    graph = faults.plant(made.graph, faults.frozen(axis, 1), tmp_path / "model.onnx")
    report = tieconv.parity(graph, made.model, provider="cpu")
    assert report.verdict is Verdict.FAILED
    assert report.structure is not None
    assert report.structure.faults == (f"the {what} of the input input_ids is fixed at 1",)
