"""What was written is judged by transformers: same logits, same tables, no key missing or unexpected."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from fixtures import zoo
from tests.reload.judge import LAYOUTS, TORCH, round_trip
from tests.reload.sample import SAMPLE

REFUSED = {
    "UMT5ForConditionalGeneration": "scales its logits by the flag in one transformers major version",
    "MT5ForConditionalGeneration": "scales its logits by the flag in one transformers major version",
    "ReformerModelWithLMHead": "never ties",
    "RemBertForMaskedLM": "never ties",
    "ZambaForCausalLM": "share one transformer block",
    "ElectraForPreTraining": "no output embedding",
}


TORCH_SAMPLE = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM", "MambaForCausalLM",
    "BertForMaskedLM", "RobertaForMaskedLM", "ModernBertForMaskedLM", "BartForConditionalGeneration",
    "T5ForConditionalGeneration", "WhisperForConditionalGeneration",
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SAMPLE)
def test_untie_and_retie_keep_the_function(name: str, layout: str, tmp_path: Path) -> None:
    """Untying, then tying again, gives bit-equal logits and tables at each step, and the first files at the end."""
    verdicts = round_trip(name, layout, tmp_path)
    if name in REFUSED:
        assert verdicts["untie"].startswith("refused:")
        assert REFUSED[name] in verdicts["untie"]
    else:
        assert verdicts == {"untie": "exact", "retie": "exact"}


@pytest.mark.parametrize("name", TORCH_SAMPLE)
def test_torch_files_keep_the_function(name: str, tmp_path: Path) -> None:
    """The same for a model saved by `torch.save`: the head gets a storage of its own, and its name goes again."""
    verdicts = round_trip(name, TORCH, tmp_path)
    assert verdicts == {"untie": "exact", "retie": "exact"}


def test_the_sample_is_wide() -> None:
    """At least 60 classes that can be untied, from every auto mapping."""
    assert len(set(SAMPLE)) == len(SAMPLE)
    assert set(SAMPLE) <= set(zoo.classes())
    assert len(set(SAMPLE) - REFUSED.keys()) >= 60


@pytest.mark.matrix
def test_every_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every class that builds here, both layouts: exact, or refused with a reason. Prints the table."""
    rows = [
        (name, layout, _verdicts(name, layout, tmp_path / f"{name}-{layout}"))
        for name in zoo.classes()
        if name not in zoo.UNBUILDABLE
        for layout in LAYOUTS
    ]
    with capsys.disabled():
        for name, layout, verdicts in rows:
            print(f"{name:60} {layout:8} untie {verdicts['untie'][:90]:90} retie {verdicts['retie'][:60]}")
    wrong = [row for row in rows for verdict in row[2].values() if not verdict.startswith(("exact", "refused", "not"))]
    assert not wrong


def _verdicts(name: str, layout: str, folder: Path) -> dict[str, str]:
    try:
        return round_trip(name, layout, folder)
    except ValueError as error:
        if "tie_word_embeddings is not supported" in str(error):
            return {"untie": "not tied by any config: its class refuses the flag", "retie": "not reached"}
        raise
    except ImportError as error:
        warnings.warn(f"{name}: {error}", stacklevel=1)
        return {"untie": f"not built: {error}", "retie": "not reached"}
