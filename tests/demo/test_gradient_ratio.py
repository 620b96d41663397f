"""`demo --gradient-ratio` and `--seeds`: the gradients themselves, the toys that they train, and the intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import gamma, pi, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import Result

from tests.cli.run import ok, refused
from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.demo.toy_settings import BATCH, CONTEXT, WORDS, GradientRatio, parse_ratio
from tieconv.demo.toys import STUDENT, GradientEffect, RunOfToys, gradient_effect, interval, lead

ROOT = Path(__file__).parents[2]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def toy() -> tuple[Any, torch.Tensor]:
    """A tied toy and a batch of words."""
    from tieconv.demo.train import config

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config(tied=True)), torch.randint(WORDS, (BATCH, CONTEXT))


@pytest.fixture(scope="module")
def shares(toy: tuple[Any, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The two gradients by autograd, from a model whose head is a parameter of its own, and the loss."""
    from tieconv.demo.train import config

    model, ids = toy
    untied = transformers.LlamaForCausalLM(config(tied=False))
    weights = model.state_dict()
    untied.load_state_dict({**weights, HEAD: weights[EMBEDDING].clone()})
    loss = untied(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    gradients = untied.get_input_embeddings().weight.grad, untied.get_output_embeddings().weight.grad
    assert gradients[0] is not None and gradients[1] is not None
    assert gradients[0].norm() > 0 and gradients[1].norm() > 0
    return gradients[0], gradients[1], loss.item()


@pytest.mark.parametrize(("embedding", "head"), [(1, 0), (0, 1), (5, 1), (1, 1), (0.5, 20)])
def test_each_share_of_the_gradient_has_its_factor(
    toy: tuple[Any, torch.Tensor], shares: tuple[torch.Tensor, torch.Tensor, float], embedding: float, head: float
) -> None:
    """With 1:0 the table's gradient is the embedding's share alone. Loss and logits are those of the ordinary run."""
    from tieconv.demo.train import scaled_forward

    model, ids = toy
    model.zero_grad()
    ordinary = model(input_ids=ids, labels=ids, use_cache=False)
    scaled = scaled_forward(model, GradientRatio(embedding, head), input_ids=ids, labels=ids, use_cache=False)
    assert torch.equal(scaled.logits, ordinary.logits) and scaled.loss.item() == ordinary.loss.item() == shares[2]
    scaled.loss.backward()
    assert torch.equal(model.lm_head.weight.grad, embedding * shares[0] + head * shares[1])


def test_gradients_of_other_parameters_are_unchanged(toy: tuple[Any, torch.Tensor]) -> None:
    """A factor of the head does not reach the hidden states, nor the layers below."""
    from tieconv.demo.train import scaled_forward

    model, ids = toy
    gradients = []
    for forward in (model, lambda **inputs: scaled_forward(model, GradientRatio(7, 0), **inputs)):
        model.zero_grad()
        forward(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if name != EMBEDDING})
    assert gradients[0] and all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


@pytest.mark.parametrize("text", ["5", "a:b", "-1:1", "0:0", "1:1", "1:1e9", "nan:1", "5:1:2", "٥:1"])
def test_other_ratios_are_refused(text: str, tmp_path: Path) -> None:
    """Before anything is trained or written."""
    assert "gradient ratio" in refused("demo -o", tmp_path / "toy", "--gradient-ratio", text)
    assert list(tmp_path.iterdir()) == []


def test_ratio_is_written_as_it_is_given() -> None:
    assert [str(parse_ratio(text)) for text in ("5:1", "0.5:20", "100000:1")] == ["5:1", "0.5:20", "100000:1"]
    assert parse_ratio("5:1").directory == "tied-5-1"


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A short run over three seeds with a ratio, named twice."""
    out = tmp_path_factory.mktemp("demo") / "toy"
    return out, ok("demo --steps 12 --seeds 3 --gradient-ratio 9:1 --gradient-ratio 9:1 -o", out)


def report(path: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((path / "report.json").read_text("utf-8"))
    assert document["headline"]["question"].startswith("Which table")
    return {section["title"]: section for section in document["sections"]}


def values(section: Mapping[str, Any]) -> dict[str, float]:
    return {measure["name"]: measure["value"] for measure in section["measures"]}


@pytest.mark.slow
def test_every_seed_has_its_toys(repeated: tuple[Path, Result]) -> None:
    """Each differs in text and weights, and each directory is a demo by itself."""
    out, result = repeated
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json", "seed-0", "seed-1", "seed-2"]
    weights = set()
    for number in range(3):
        names = sorted(path.name for path in (out / f"seed-{number}").iterdir())
        assert names == ["report.html", "report.json", "tied", "tied-9-1", "untied", "untied-second"]
        weights |= {path.read_bytes() for path in (out / f"seed-{number}").glob("*/model.safetensors")}
    assert len(weights) == 12
    assert str(out / "seed-0" / "tied") in result.stderr


@pytest.mark.slow
def test_means_and_intervals(repeated: tuple[Path, Result]) -> None:
    """Mean ± 4.303·s/√3 of the figures in the reports of the seeds."""
    out, result = repeated
    runs = [values(report(out / f"seed-{number}")["Alignment"]) for number in range(3)]
    mean = report(out)["Alignment"]
    assert mean["detail"]["seeds"] == [0, 1, 2]
    for name, value in values(mean).items():
        of_runs = [run[name] for run in runs]
        assert value == pytest.approx(fmean(of_runs))
        assert mean["detail"]["half_width"][name] == pytest.approx(4.303 * stdev(of_runs) / sqrt(3))
    rsa, half = values(mean)["rsa U→T"], mean["detail"]["half_width"]["rsa U→T"]
    line = next(line for line in result.stdout.splitlines() if line.startswith("rsa  "))
    assert f"{rsa:.3f} ±{half:.3f}" in line
    assert all(
        len(line.rstrip()) <= 100 for line in result.stdout.splitlines() if line.count("±") > 1 and "nats" not in line
    )


@pytest.mark.parametrize("degrees", range(1, 10))
def test_quantiles_hold_95_percent(degrees: int) -> None:
    """The integral of Student's density between the two quantiles."""
    quantile = STUDENT[degrees - 1]
    x = np.linspace(-quantile, quantile, 200_001)
    density = (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    scale = gamma((degrees + 1) / 2) / (sqrt(degrees * pi) * gamma(degrees / 2))
    assert scale * np.trapezoid(density, x) == pytest.approx(0.95, abs=5e-5)


def test_one_run_has_no_interval() -> None:
    assert interval([2.0]).half is None and str(interval([2.0])) == "2.000"
    assert str(interval([-0.0001, -0.0001])) == "0.000 ±0.000"


@pytest.mark.slow
def test_the_change_is_paired(repeated: tuple[Path, Result]) -> None:
    """Its interval is that of the differences within runs: both toys start from the same weights."""
    out, result = repeated
    losses = [values(report(out / f"seed-{number}")["Training"]) for number in range(3)]
    differences = [run["held-out loss tied-9-1"] - run["held-out loss tied"] for run in losses]
    change = report(out)["Gradients 9:1"]["detail"]["changes"]["held-out loss"]["difference"]
    assert change["mean"] == pytest.approx(sum(differences) / 3)
    assert change["half_width"] == pytest.approx(4.303 * stdev(differences) / sqrt(3))
    assert "9:1" in result.stdout and f"{change['mean']:+.3f} ±{change['half_width']:.3f}" in result.stdout


@pytest.mark.slow
def test_one_seed_with_a_ratio(tmp_path: Path) -> None:
    """No interval is claimed."""
    result = ok("demo --steps 2 --gradient-ratio 0:1 -o", tmp_path / "toy")
    assert "One run gives no interval" in result.stdout and "±" not in result.stdout
    effect = report(tmp_path / "toy")["Gradients 0:1"]["detail"]
    assert (effect["input_embedding"], effect["output_head"], effect["seeds"]) == (0, 1, [0])
    ok("inspect", tmp_path / "toy" / "tied-0-1")


def run_of(seed: int, ordinary: float, scaled: float) -> RunOfToys:
    """A run whose tied tables have these leads in every measure."""

    def alignment(height: float) -> Section:
        names = [
            (f"{name} {pair}", height if pair == "U→T" else 0.0)
            for name in ("knn", "rsa", "norms")
            for pair in ("E→T", "U→T")
        ]
        return Section("Alignment", "", tuple(Measure(name, value, 0.0) for name, value in names))

    training = Section("Training", "", (Measure("held-out loss tied", 4.0), Measure("held-out loss tied-5-1", 4.5)))
    analysis = Analysis("toy", (alignment(ordinary), training), "", "")
    return RunOfToys(seed, analysis, {GradientRatio(5, 1): alignment(scaled)})


@pytest.mark.parametrize(
    ("scaled", "answer"),
    [((0.5, 0.51, 0.49), "away from the output role"), ((1.2, 1.21, 1.19), "towards"), ((0.5, 1.2, 0.9), "no clear")],
)
def test_direction_needs_an_interval_without_zero(scaled: tuple[float, ...], answer: str) -> None:
    runs = [run_of(seed, 0.9 + seed / 100, height) for seed, height in enumerate(scaled)]
    section = gradient_effect(GradientRatio(5, 1), runs)
    assert answer in section.sentence and "+0.500 ±0.000 nats" in section.sentence
    assert isinstance(section.detail, GradientEffect)
    assert section.detail.changes[lead("knn")].scaled.mean == pytest.approx(sum(scaled) / 3)


@pytest.mark.slow
def test_the_record_of_the_docs_is_such_a_report(repeated: tuple[Path, Result]) -> None:
    """It has the measures that the demo reports today, over three seeds."""
    record = json.loads((ROOT / "docs" / "measured" / "demo.json").read_text("utf-8"))
    sections, made = {section["title"]: section for section in record["sections"]}, report(repeated[0])
    assert sections.keys() == {"Alignment", "Training", "Gradients 5:1", "Gradients 20:1", "Gradients 0:1"}
    assert values(sections["Alignment"]).keys() == values(made["Alignment"]).keys()
    assert sections["Gradients 5:1"]["detail"]["changes"].keys() == made["Gradients 9:1"]["detail"]["changes"].keys()
    assert {tuple(section["detail"]["seeds"]) for section in sections.values()} == {(0, 1, 2)}
