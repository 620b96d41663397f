"""What is known of each class's last norm is what transformers computes."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.analysis.lm import VOCABULARY, build, configure
from tieconv.analysis.final import _KNOWN
from tieconv.analysis.subject import Subject, open_subject
from tieconv.checkpoint.inspection import Depth
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.sources.local import locate, open_files

MORE: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 3.0},
    "granitemoe": {"logits_scaling": 3.0},
    "granitemoeshared": {"logits_scaling": 3.0},
    "gemma2": {"final_logit_softcapping": 5.0},
    "gpt_neo": {"attention_types": [[["global"], 2]], "num_layers": 2, "num_heads": 4},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "mixtral": {"num_local_experts": 2},
    "qwen2_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
                  "shared_expert_intermediate_size": 16},
    "qwen3_moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "falcon": {"multi_query": False, "alibi": False, "num_kv_heads": 4, "head_dim": ...},
}  # fmt: skip


def inputs(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    """What the model's forward pass takes for ``ids``; an encoder-decoder reads and predicts the same."""
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "use_cache" in signature(model.forward).parameters:
        given["use_cache"] = False
    return given | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def opened(folder: Path, files: Any) -> Subject:
    checkpoint = read_checkpoint(locate(str(folder)), files)
    return open_subject(inspect_checkpoint(checkpoint, files, Depth.HEADER), files)


@pytest.mark.parametrize("model_type", sorted(_KNOWN))
def test_logits_follow_from_the_last_norm(model_type: str, tmp_path: Path) -> None:
    """cap(s · U (γ ⊙ x̂ + β) + b) with ‖x̂‖ ≤ √d gives the model's logits, x̂ being solved from what the norm gives."""
    model = build(tmp_path, model_type, tied=False, **MORE.get(model_type, {}))
    heard: list[torch.Tensor] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    with torch.no_grad():
        ids = torch.arange(3, 40)[None]
        logits = model(**inputs(model, ids)).logits[0].double().numpy()
    with open_files(tmp_path) as files:
        subject = opened(tmp_path, files)
        final = subject.final
        assert final is not None and subject.output.rows == VOCABULARY
        table = subject.output.values(0, VOCABULARY)
    hidden = heard[0][0].double().numpy()
    shift = np.zeros(hidden.shape[1]) if final.shift is None else final.shift
    states = (hidden - shift) / final.gains
    assert np.linalg.norm(states, axis=1).max() <= np.sqrt(states.shape[1]) * (1 + 1e-5)
    told = final.scale * (states * final.gains + shift) @ table.T
    told = final.cap * np.tanh(told / final.cap) if final.capped else told
    told = told if subject.bias is None else told + subject.bias
    assert np.abs(told - logits).max() <= 1e-4 * max(np.abs(logits).max(), 1)


def test_a_class_of_another_name_is_not_bounded(tmp_path: Path) -> None:
    """Code of the model's own may put anything before the head, whatever model_type it goes by."""
    build(tmp_path, tied=False)
    configure(tmp_path, architectures=["HouseLlamaForCausalLM"])
    with open_files(tmp_path) as files:
        assert opened(tmp_path, files).final is None


def test_unknown_classes_are_not_bounded(models: Path) -> None:
    """A class whose way from the norm to the logits is not listed has no certificate."""
    with open_files(models / "t5") as files:
        assert opened(models / "t5", files).final is None
