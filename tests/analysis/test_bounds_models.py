"""No perturbed model of transformers does more than its certificate allows, in its own forward pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.analysis.constructed import table
from tests.analysis.lm import MORE, VOCABULARY, build, inputs
from tests.analysis.test_bounds import PERTURBATIONS
from tests.analysis.test_final import opened
from tieconv.analysis.retie_cost import Change, bound
from tieconv.sources.local import open_files

CLASSES = ("llama", "gemma2", "gpt2", "gpt_neox", "phi", "cohere", "granite", "olmo", "bloom", "qwen3",
           "opt", "bert", "distilbert", "electra", "bart", "m2m_100")  # fmt: skip


def violations(folder: Path, model_type: str, trials: int) -> tuple[int, int]:
    """(violations, trials whose KL was above float32's own noise) over perturbed heads of one random model."""
    model = build(folder, model_type, tied=False, **MORE.get(model_type, {}))
    with open_files(folder) as files:
        subject = opened(folder, files)
        assert subject.final is not None
        stored, final = subject.output.values(0, VOCABULARY), subject.final
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, VOCABULARY, (4, 40)))
    bad = counted = 0
    for seed in range(trials):
        rng = np.random.default_rng([seed, len(model_type)])
        changed = PERTURBATIONS[seed % len(PERTURBATIONS)](stored, 10 ** rng.uniform(-2, 0), rng)
        told = bound(Change(table(changed, "F32"), table(stored, "F32"), final))
        before, after = (_log_p(model, head, ids) for head in (stored, changed))
        kl = float((before.exp() * (before - after)).sum(-1).max())
        log_p = float((before - after).abs().max())
        bad += kl > told.kl + 1e-5 or log_p > told.log_p + 1e-4
        counted += kl > 1e-5
    return bad, counted


def _log_p(model: torch.nn.Module, head: np.ndarray, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.get_output_embeddings().weight.copy_(torch.from_numpy(head))  # type: ignore[operator]
        logits = model(**inputs(model, ids)).logits
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model_type", CLASSES)
def test_no_model_exceeds_its_bound(model_type: str, tmp_path: Path) -> None:
    """A quick sample of every class, in which something did move."""
    bad, counted = violations(tmp_path, model_type, 5)
    assert bad == 0 and counted >= 3


@pytest.mark.slow
def test_no_model_exceeds_its_bound_at_full_length(tmp_path: Path) -> None:
    """Over 960 perturbed models of sixteen classes."""
    found = [violations(tmp_path / model_type, model_type, 60) for model_type in CLASSES]
    assert sum(bad for bad, _ in found) == 0
    assert sum(counted for _, counted in found) >= 720
