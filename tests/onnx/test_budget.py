"""What a budget feeds, the reference in float64 with float32 weights, and the faults in a real model."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

pytest.importorskip("torch")

import torch

import tieconv
from tests.onnx import faults
from tests.onnx.exported import make
from tests.onnx.planted import arithmetic
from tests.onnx.real_faults import FAULTS, FILE, UNSEEN
from tieconv.api.graphs import seconds_of
from tieconv.onnx.parity.batches import LONG, Layout, first_cells
from tieconv.onnx.parity.bindings import Bindings, Kind, Padding
from tieconv.onnx.parity.measured_pair import Wishes
from tieconv.onnx.parity.passes import make_work, pieces
from tieconv.reference import Batch, load
from tieconv.reference import float64 as wide
from tieconv.reference.packages import need

LARGE = 1 << 20
POLICY = "OMP_WAIT_POLICY"


def test_a_budget_is_a_time() -> None:
    """Seconds, minutes, hours, or all batches; anything else is refused."""
    assert [seconds_of(text) for text in ("30s", "5m", "1h", "full")] == [30, 300, 3600, math.inf]
    for text in ("", "s", "5", "5d", "-1s", "1.5s", "FULL"):
        with pytest.raises(ValueError, match="is not a time"):
            seconds_of(text)


@pytest.mark.parametrize("kind", Kind)
def test_more_seconds_feed_more(kind: Kind) -> None:
    """Every budget has the first cases, a larger one has those of a smaller one, and the rest is said."""
    work = make_work(Bindings(kind, {}, (), (), "logits"), SimpleNamespace(vocab_size=99))
    work = replace(work, weights=10**9, ids=tuple(range(99)), first_ids=(0, 98))
    least, every = (replace(work, seconds=seconds) for seconds in (0.0, math.inf))
    enough = sum(cell.seconds(10**9) for cell in least.cells) + 20
    some = replace(work, seconds=enough)
    assert least.cells[:3] == list(first_cells(kind, 1 << 30, holes=work.holes))[:3]
    assert len(least.cells) < len(some.cells) < len(every.cells)
    assert set(least.cells) < set(some.cells) < set(every.cells) == {*some.cells, *some.left_out}
    assert every.left_out == []
    assert sum(cell.seconds(10**9) for cell in some.cells) <= enough


def test_a_small_model_gets_all_cases() -> None:
    """Without a budget, all cases of a small model take less than its export; a large one gets the first."""
    bindings, config = Bindings(Kind.CACHED, {}, (), (), "logits"), SimpleNamespace(vocab_size=99)
    for weights, complete in ((10**5, True), (135 * 10**6, False)):
        work = replace(make_work(bindings, config), weights=weights, seconds=Wishes().seconds(weights))
        assert (work.left_out == []) is complete
        assert complete or work.cells == list(first_cells(Kind.CACHED, 1 << 30, holes=work.holes))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("longest", [3, 9, 17, 100, LARGE])
@pytest.mark.parametrize("where", Padding)
def test_the_first_cases_fit(kind: Kind, longest: int, where: Padding) -> None:
    """No case has more tokens than the model has positions, and the pieces of a case are all its tokens."""
    made = list(first_cells(kind, longest, where))
    assert max(max(cell.past, cell.sequence) for cell in made) <= min(LONG, longest)
    for cell in made:
        assert not kind.steps or sum(pieces(cell, kind)) == (cell.sequence if kind.encodes else cell.length)
        assert not cell.padding or where is not Padding.NONE
    if longest == LARGE and where is not Padding.NONE:
        six = next(cell for cell in made if cell.batch == 6)
        assert len({str(six.masked(row, 16)) for row in range(6)}) == 6
        assert (six.layout is Layout.LEFT) == (kind in (Kind.CACHED, Kind.PLAIN) and where is not Padding.FRONT)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "bert", "mixtral"])
def test_float32_weights_compute_in_float64(name: str, tmp_path: Path) -> None:
    """The same logits as with all weights in float64; afterwards the weights are float32 again."""
    made = make(name)
    made.float().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    model = load(str(tmp_path), config, "float32")
    ids = torch.arange(24).reshape(2, 12)
    batch = Batch(ids, torch.ones_like(ids))
    before = model.logits(batch)
    with model.in_float64():
        model.widen_all = Mock(side_effect=AssertionError)  # one layer at a time suffices
        logits = model.logits(batch)
    assert logits.dtype is torch.float64
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.float32}
    assert torch.equal(model.logits(batch), before)
    with pytest.raises(ZeroDivisionError), model.in_float64():
        raise ZeroDivisionError
    assert (model.dtype, model.widen_all) == ("float32", None)
    assert not any("forward" in vars(module) for module in model.model.modules())
    # Gemma's class keeps the scale of embeddings in a buffer, which stays float32.
    whole = load(str(tmp_path), config, "float64").logits(batch)
    assert float((whole - logits).abs().max()) < (1e-6 if name == "gemma2" else 1e-11)


def test_a_class_that_reads_weights_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a layer's weights are not float64 where a class reads them, all weights become float64."""
    make("llama").save_pretrained(tmp_path)
    model = load(str(tmp_path), json.loads((tmp_path / "config.json").read_text()), "float32")
    ids, units = torch.arange(6)[None], list(wide._units(model.model))
    batch = Batch(ids, torch.ones_like(ids))
    with model.in_float64():
        wanted = model.logits(batch)
    for left_out in (slice(0), slice(2, 3), slice(3, 5), slice(len(units) - 1, None)):
        chosen = [] if left_out == slice(0) else [unit for unit in units if unit not in units[left_out]]
        monkeypatch.setattr(wide, "_units", lambda _, chosen=chosen: chosen)
        with model.in_float64():
            assert torch.equal(model.logits(batch), wanted) or (model.logits(batch) - wanted).abs().max() < 1e-11
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_a_graph_with_fixed_axes_runs_at_its_shape(exported, tmp_path: Path) -> None:
    """The structure fails, and all else is measured at that shape: a healthy graph passes there, a fault does not."""
    bert, path = exported("bert"), tmp_path / "model.onnx"
    for axis, length in ((0, 2), (1, 7)):
        faults.plant(path if axis else bert.graph, faults.frozen(axis, length), path)
    wrong = faults.plant(path, arithmetic.number(8**-0.25, 0.6), tmp_path / "wrong.onnx")
    for graph, more in ((path, set()), (wrong, {"case_ratio", "rms_ratio", "max_ratio"})):
        report = tieconv.parity(graph, bert.model, provider="cpu")
        assert {gate.name for gate in report.gates if not gate.passed} == {"structure", *more}
        assert {(case.batch, case.sequence, case.padding, case.seed) for case in report.cases} == {
            (2, 7, 2, seed) for seed in range(3)
        }
        assert report.structure is not None
        notes = "only batches of 2 rows with 7 tokens were run", "at this shape every other gate passed"
        assert report.structure.notes == notes[: 1 if more else 2]


def test_faults_in_a_real_model() -> None:
    """Each was measured and failed, or has a reason; at least 30 by the logits alone. The healthy graph passed."""
    healthy, *rows = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    assert (healthy["fault"], healthy["verdict"]) == ("", "passed")
    assert [row["fault"] for row in rows] == list(FAULTS)
    assert {row["fault"] for row in rows if row["verdict"] != "failed"} == UNSEEN.keys()
    stored = {"weights", "graph_weights", "token_lookup"}
    assert sum(bool(row["cases"]) and not stored & set(row["failed"]) for row in rows) >= 30


def test_the_wait_policy_of_the_user_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's OpenMP reads it while it is loaded; the variable is not the program's afterwards."""
    seen: list[str | None] = []
    monkeypatch.setattr("tieconv.reference.packages.import_module", lambda _: seen.append(os.environ.get(POLICY)))
    for own in (None, "ACTIVE"):
        monkeypatch.delenv(POLICY, raising=False)
        if own:
            monkeypatch.setenv(POLICY, own)
        need("torch", "torch", "a test")
        assert os.environ.get(POLICY) == own
    assert seen == ["PASSIVE", "ACTIVE"]
