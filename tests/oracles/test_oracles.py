"""The grid has what it names, observations mean what they say, and the kept figures reach the goals."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles import environments, measure, observe
from tests.oracles.checkpoints import DTYPES, FAMILIES, HEADS, LAYOUTS, Cell, cells
from tests.oracles.environments import ENVIRONMENTS
from tests.oracles.measure import KEPT, Judged, faults, figures
from tieconv.checkpoint.finding import Outcome, Prediction
from tieconv.loaders.registry import CONSUMERS

RESULTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))}
ROWS, WIDTH = 12, 4


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job whose reference is a linear model: logits are one embedding row times the head, plus the bias."""
    random = np.random.default_rng(0)
    tables = {"E": random.normal(size=(ROWS, WIDTH)), "different": random.normal(size=(ROWS, WIDTH))}
    bias = random.normal(size=ROWS)
    arrays = {f"table {name}": table.astype(np.float32) for name, table in tables.items()}
    for first, one in tables.items():
        for second, two in tables.items():
            for key, added in (("0", 0 * bias), ("1", bias)):
                arrays[f"{first}|{second}|{key}"] = two @ one[3] + added
    path = tmp_path_factory.mktemp("reference") / "linear.npz"
    made: dict[str, Any] = {**arrays, "bias": bias}
    np.savez(path, **made)
    return {"id": 1, "reference": str(path), "layout": "single"}


def stored(job: dict[str, Any], head: str, embedding: bool = True, bias: str = "none", **more: str) -> dict[str, Any]:
    return {**job, **more, "stored": {"embedding": embedding, "head": head, "bias": bias}}


@pytest.mark.parametrize(
    ("key", "head", "embedding", "outcome"),
    [
        ("E|E|0", "absent", True, "tied"),
        ("E|E|0", "equal", True, "same"),
        ("E|different|0", "different", True, "untied"),
        ("E|E|0", "different", True, "discarded"),
        ("different|different|0", "different", True, "discarded"),
        ("different|different|0", "different", False, "tied"),
        ("E|different|0", "different", False, "random"),
        ("different|E|0", "absent", True, "random"),
    ],
)
def test_logits(key: str, head: str, embedding: bool, outcome: str, job: dict[str, Any]) -> None:
    """Logits tell which tables a loader used, up to a factor and to rounding."""
    with np.load(job["reference"]) as file:
        logits = file[key]
    seen = observe.from_logits(stored(job, head, embedding), logits * 3 + np.abs(logits).mean() * 1e-3)
    assert seen["outcome"] == outcome


def test_logits_of_no_table(job: dict[str, Any]) -> None:
    """They are random values where a table is not stored, and no match where all are."""
    logits = np.random.default_rng(5).normal(size=ROWS)
    assert observe.from_logits(stored(job, "absent"), logits)["outcome"] == "random"
    assert observe.from_logits(stored(job, "different"), logits)["outcome"] == "unmatched"
    assert observe.from_logits(stored(job, "different", layout="stray"), logits)["outcome"] == "random"
    assert observe.from_logits(stored(job, "different"), logits * np.nan)["outcome"] == "random"


def test_a_bias_that_the_logits_lack(job: dict[str, Any]) -> None:
    """Only a stored bias with other values than zero can be lost."""
    with np.load(job["reference"]) as file:
        without, added = file["E|E|0"], file["E|E|1"]
    assert observe.from_logits(stored(job, "absent", bias="nonzero"), without)["dropped"]
    assert not observe.from_logits(stored(job, "absent", bias="nonzero"), added)["dropped"]
    assert not observe.from_logits(stored(job, "absent", bias="zero"), without)["dropped"]


@pytest.mark.parametrize(
    ("tables", "one", "head", "outcome"),
    [
        (("E", "E"), True, "equal", "tied"),
        (("E", "E"), False, "equal", "untied"),
        (("E", "E"), None, "equal", "same"),
        (("E", "different"), False, "different", "untied"),
        (("E", "E"), True, "different", "discarded"),
        (("E", "nan"), False, "absent", "random"),
        (("E", "zero"), False, "absent", "random"),
    ],
)
def test_tables(tables: tuple[str, str], one: bool | None, head: str, outcome: str, job: dict[str, Any]) -> None:
    """Parameters are compared with the stored values; memory that was never written holds NaN."""
    with np.load(job["reference"]) as file:
        arrays = {"E": file["table E"], "different": file["table different"]}
    arrays |= {"nan": arrays["E"] * np.nan, "zero": arrays["E"] * 0}
    embedding, output = (np.vstack([arrays[name], np.zeros((4, WIDTH))]) for name in tables)  # padded, as in vLLM
    assert observe.from_tables(stored(job, head), embedding, output, one)["outcome"] == outcome


def test_a_copied_embedding_beside_a_stray_head(job: dict[str, Any]) -> None:
    """Two parameters with the values of the embedding are no tied pair; one parameter is."""
    with np.load(job["reference"]) as file:
        table = file["table E"]
    stray = stored(job, "different", layout="stray")
    assert observe.from_tables(stray, table, table, True)["outcome"] == "left-out"
    assert observe.from_tables(stray, table, table, False)["outcome"] == "same"


def test_packages_without_their_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's requirements are for GPUs: pip installs it alone, after what its loader imports."""
    calls: list[list[str]] = []
    monkeypatch.setattr(
        environments.subprocess, "run", lambda words, check: calls.append([str(word) for word in words])
    )
    environments.setup("sglang", tmp_path)
    _, required, alone = calls
    assert "transformers==5.19.0" in required and "--no-deps" not in required
    assert alone[-2:] == ["--no-deps", "sglang==0.5.23"]


def test_the_grid_has_every_axis() -> None:
    """At least 55 families, each with every flag, head, bias, layout and dtype."""
    assert len(set(FAMILIES)) == len(FAMILIES) >= 55
    one, two = ([*cells("LlamaForCausalLM", levels)] for levels in (1, 2))
    assert len({cell.name for cell in one}) == len(one) > 100
    assert {cell.flags[0] for cell in one} == {True, False, None, "absent"}
    assert {cell.head for cell in one} == set(HEADS)
    assert {cell.embedding for cell in one} == {True, False}
    assert {cell.bias for cell in one} == {"none", "zero", "nonzero"}
    assert {cell.layout for cell in one} == {"single", *LAYOUTS}
    assert {cell.dtype for cell in one} == {"F32", *DTYPES}
    assert len({cell.flags for cell in two}) > len({cell.flags for cell in one})


def judged(predicted: Outcome, seen: str, dropped: bool = False, lost: tuple[str, ...] = ()) -> Judged:
    prediction = Prediction("x", "1", predicted, "why", True, "ran 1", "source", dropped=lost)
    return Judged(Cell("Llama", (True,), "equal").name, prediction, {"outcome": seen, "dropped": dropped, "why": ""})


def test_what_counts_as_right() -> None:
    """Equal copies agree with tied and untied; a lost bias must be predicted; an unknown is no answer."""
    assert judged(Outcome.TIED, "same").right and judged(Outcome.UNTIED, "same").right
    assert not judged(Outcome.DISCARDED, "same").right
    assert judged(Outcome.TIED, "left-out").right and not judged(Outcome.UNTIED, "left-out").right
    assert not judged(Outcome.TIED, "tied", dropped=True).right
    assert judged(Outcome.TIED, "tied", dropped=True, lost=("lm_head.bias",)).right
    assert not judged(Outcome.UNKNOWN, "tied").answered and not judged(Outcome.TIED, "unmatched").answered
    assert judged(Outcome.TIED, "random").dangerous and not judged(Outcome.ERROR, "tied").dangerous
    found = figures([judged(Outcome.TIED, "random"), judged(Outcome.TIED, "tied"), judged(Outcome.UNKNOWN, "tied")])
    assert (found["right"], len(found["wrong"]), found["dangerous"], found["unknown"]) == (1, 1, 1, 1)


def test_a_new_fault_is_one_that_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listed wrong cell passes; a dangerous one never does."""
    monkeypatch.setattr(measure, "KEPT", tmp_path)
    wrong, dangerous = judged(Outcome.ERROR, "tied"), judged(Outcome.TIED, "random")
    (tmp_path / "mlx-lm.json").write_text(json.dumps({"wrong": [str(wrong)]}))
    assert faults("mlx-lm", [wrong]) == []
    assert faults("mlx-lm", [wrong, dangerous]) == [str(dangerous)]
    (tmp_path / "mlx-lm.json").write_text(json.dumps({"wrong": []}))
    assert faults("mlx-lm", [wrong]) == [str(wrong)]


def test_a_loader_that_dies_loses_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is started again behind the job that ended it."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, json, os\n"
        "for line in sys.stdin:\n"
        "    job = json.loads(line)\n"
        "    if job['id'] == 2: os.abort()\n"
        "    print(json.dumps({'id': job['id'], 'outcome': 'tied', 'dropped': False, 'why': ''}), flush=True)\n"
    )
    monkeypatch.setitem(measure.SCRIPTS, "dying", str(script))
    started = measure.Runner("dying", sys.executable)
    outcomes = [started.observe({"id": number})["outcome"] for number in (1, 2, 3)]
    started.close()
    assert outcomes == ["tied", "error", "tied"]


def test_every_measured_loader_has_figures() -> None:
    """What an answer calls run is what the kept figures name, release by release."""
    assert set(RESULTS) <= set(ENVIRONMENTS)
    ran = {
        (re.split("[ <>=]", entry["consumer"])[0], version)
        for entry in RESULTS.values()
        for version in entry["versions"].values()
    }
    for consumer in CONSUMERS:
        if consumer.name != "safetensors":  # the tests run it here
            assert all((consumer.name, version) in ran for version in consumer.ran), consumer


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_the_figures_reach_the_goals(name: str) -> None:
    """At least 99.5 % of the answered cells are right, none is dangerous, and most have an answer."""
    entry = RESULTS[name]
    answered = entry["right"] + len(entry["wrong"])
    assert entry["families"] >= 55
    assert entry["right"] >= 0.995 * answered
    assert entry["dangerous"] == 0
    assert entry["unknown"] <= 0.1 * entry["cells"] and answered >= 0.8 * entry["cells"]


def test_few_cells_are_unknown() -> None:
    """At most 5 % over all loaders."""
    assert sum(entry["unknown"] for entry in RESULTS.values()) <= 0.05 * sum(one["cells"] for one in RESULTS.values())
