"""The judge of real programs' files: it passes a healthy model, and a fault of tieconv would be a wrong cell."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from docs.pages import writers as page
from tests.cli.run import run
from tests.lazy import load_file
from tests.writers import graph_faults, judge as judging
from tests.writers.measure import ENVIRONMENTS, FIGURES, NOT_INSTALLED, PROGRAMS, WRITERS, figures, new_faults

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
CASE: dict[str, Any] = {"reads": ["safetensors"], "named": [], "file": "", "words": [], "parity": ""}
FACTS = {"tied": False, "embedding": "model.embed_tokens.weight", "head": "lm_head.weight"}


def load(model: Path) -> dict[str, Any]:
    """A program whose logits are the sums of the stored head's rows, or of the embedding's without one."""
    tensors = {key: value for path in model.glob("*.safetensors") for key, value in load_file(path).items()}
    table = tensors.get(FACTS["head"], tensors[FACTS["embedding"]])
    return {"logits": table.double().sum(1).tolist()}


def judged(work: Path, facts: dict[str, Any], load: judging.Load = load) -> dict[str, judging.Cell]:
    return {cell.question: cell for cell in judging.judge(MODELS / "llama-untied", facts, CASE, load, work)}


def test_a_healthy_model_has_no_wrong_cell_and_each_planted_fault_is_found(tmp_path: Path) -> None:
    cells = judged(tmp_path, FACTS)
    assert [cell for cell in cells.values() if cell.outcome == judging.WRONG] == []
    assert {"found: a changed row", "found: an untied head removed", *judging.VERBS} <= cells.keys()
    assert cells["retie"].outcome == judging.REFUSED and cells["untie"].outcome == judging.NOTHING


def test_an_untrue_answer_and_different_logits_are_wrong_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "VERBS", {"dedup": "dedup"})
    cells = judged(tmp_path, FACTS | {"tied": True}, lambda model: {"logits": [float(model.name == "dedup")]})
    assert cells["inspect"].outcome == cells["dedup"].outcome == judging.WRONG
    assert "logits differ by 1" in cells["dedup"].why


def test_a_refusal_that_asks_for_a_report_is_a_wrong_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "error: the written model is wrong\nhint: tieconv changed nothing; please report this\n"
    failed = SimpleNamespace(exit_code=2, stderr=said, output=said)
    monkeypatch.setattr(judging, "VERBS", {"dedup": "dedup"})
    monkeypatch.setattr(judging, "run", lambda line, *rest: failed if line == "dedup" else run(line, *rest))
    assert judged(tmp_path, FACTS)["dedup"].outcome == judging.WRONG


def test_a_fault_of_a_graph_is_planted_into_each_matrix(tmp_path: Path) -> None:
    """Parity is faked: it compares the bytes of the graph with those of the healthy one."""
    onnx = pytest.importorskip("onnx")
    graph = tmp_path / "model.onnx"
    table = onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "table")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [table])), graph)
    shared = {"head": {"output_head": {"name": "table"}, "input_embedding": {"name": "table", "shape": [4, 3]}}}
    ((fault, broken),) = ((fault, path.read_bytes()) for fault, path in graph_faults.planted(graph, shared, tmp_path))
    assert fault == "a changed row of the shared table" and broken != graph.read_bytes()
    assert not list(tmp_path.glob("changed-*"))


def test_every_writer_has_a_script_an_environment_and_figures_on_the_page() -> None:
    """The page lists every wrong cell and every program that was not run."""
    text = page.page()
    for name, writer in WRITERS.items():
        assert (PROGRAMS / f"{writer.script}.py").exists() and writer.environment in ENVIRONMENTS
        kept = json.loads((FIGURES / f"{name}.json").read_text())
        assert f"| {name} | " in text and kept["files"] and all(page._code(line) in text for line in kept["wrong"])
    assert {path.stem for path in FIGURES.glob("*.json")} == {*WRITERS}
    assert all(f"| {name} | {why} |" in text for name, why in NOT_INSTALLED.items())
    assert page.kind_of("retie: error: a.weight is not a copy of b: more") == "is not a copy of NAME"
    assert page.kind_of("retie: error: another reason") == "another reason" not in page.DECIDED


def test_the_scheduled_job_runs_every_writer() -> None:
    slow = yaml.safe_load((MODELS.parents[1] / ".github" / "workflows" / "slow.yml").read_text())
    assert slow["jobs"]["writers"]["strategy"]["matrix"]["writer"] == [*WRITERS]


def test_figures_count_each_outcome() -> None:
    cells = [judging.Cell("check", "right", "TIE004"), judging.Cell("retie", "refused", "error: no")]
    made = figures({}, {"a": [*cells, judging.Cell("diff", "wrong", "said so")]})
    assert (made["files"], made["right"], made["refused"], made["notes"]) == (1, 1, 1, {"TIE004": 1})
    assert new_faults("peft", made) == made["wrong"] == ["a: diff: said so"] and made["refusals"] == {
        "retie: error: no": 1
    }
