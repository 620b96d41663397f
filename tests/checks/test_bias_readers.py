"""BIA002 and BIA003 say which version of transformers reads which name of a head bias."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import BERT, flagged, matrix, save, vector

ROBERTA = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
BIASES = {"bert": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
          "roberta": ("lm_head.bias", "lm_head.decoder.bias")}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "stored", "message"),
    [
        (BERT, (0,), "transformers 5 fills cls.predictions.decoder.bias with zeros."),
        (BERT, (1,), "transformers 4 leaves cls.predictions.bias without values."),
        (BERT, (0, 1), "The version of transformers decides which one is loaded."),
        (ROBERTA, (1,), "transformers reads lm_head.decoder.bias."),
        (ROBERTA, (0, 1), "Both are the head bias. transformers loads lm_head.decoder.bias."),
    ],
)
def test_who_reads_which_bias(config: dict[str, object], stored: tuple[int, ...], message: str, tmp_path: Path) -> None:
    """RoBERTa's outer bias is set to the inner one in transformers 4 too; BERT's inner one to the outer."""
    kind = str(config["model_type"])
    tensors = {BIASES[kind][number]: vector(seed=number) for number in stored} | {f"{kind}.x.weight": vector(4)}
    tables = {"bert": "bert.embeddings.word_embeddings.weight", "roberta": "roberta.embeddings.word_embeddings.weight"}
    heads = {"bert": "cls.predictions.decoder.weight", "roberta": "lm_head.decoder.weight"}
    tensors |= {tables[kind]: matrix(), heads[kind]: matrix(seed=3)}
    findings = api.inspect(save(tmp_path / "m", flagged(config, False), tensors)).findings
    assert [finding.message for finding in findings if message in finding.message and finding.rule.startswith("BIA00")]
