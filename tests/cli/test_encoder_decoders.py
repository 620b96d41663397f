"""What is read of encoder-decoders as transformers saves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import tieconv
from tests.checks.fixtures.model import Config, flagged, matrix, save
from tests.cli.run import ok, run

SHARED, ENCODER, DECODER = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
PROJECTION = "model.decoder.output_projection.weight"
MARIAN: Config = {"architectures": ["MarianMTModel"], "model_type": "marian", "vocab_size": 8, "d_model": 4}
FSMT: Config = {
    "architectures": ["FSMTForConditionalGeneration"],
    "model_type": "fsmt",
    "src_vocab_size": 8,
    "tgt_vocab_size": 8,
    "d_model": 4,
    "tie_word_embeddings": False,
}
BIAS = np.zeros((1, 8), "<f4")


def test_the_table_that_both_ends_of_marian_share(tmp_path: Path) -> None:
    """The encoder's table is not stored under its own name: the shared one is the input embedding, not nothing."""
    folder = save(tmp_path, flagged(MARIAN, True), {SHARED: matrix(), "final_logits_bias": BIAS})
    lines = [line.split() for line in ok("inspect", folder).stdout.splitlines()]
    assert ["input", "embedding", SHARED, "[8,", "4]", "F32"] in lines
    assert tieconv.inspect(folder).to_dict()["head"]["input_embedding"] == {
        "name": SHARED, "shape": [8, 4], "dtype": "F32",
    }  # fmt: skip


def test_untied_it_stands_for_nothing(tmp_path: Path) -> None:
    """Where each name is a parameter of its own the shared table is not the encoder's."""
    folder = save(tmp_path, flagged(MARIAN, False), {SHARED: matrix(), "final_logits_bias": BIAS})
    assert tieconv.inspect(folder).head.input_embedding is None
    head = next(line for line in ok("inspect", folder).stdout.splitlines() if "output head" in line)
    assert head.endswith("  not stored")


def test_figures_of_distinct_tables(tmp_path: Path) -> None:
    """Ulps count to billions where signs differ; the cosine says how far two tables are from each other."""
    tensors = {ENCODER: matrix(), DECODER: matrix(seed=1), PROJECTION: matrix(seed=1)}
    screen = ok("inspect", save(tmp_path, FSMT, tensors)).stdout
    (line,) = [line for line in screen.splitlines() if "distinct: " in line]
    assert "rows differ, cosine " in line and "ulp" not in line


def test_fsmt_that_transformers_4_saved(tmp_path: Path) -> None:
    """It holds the head for the decoder's table too: untie writes the head's values there, not the encoder's."""
    tensors = {ENCODER: matrix(), PROJECTION: matrix(seed=1)}
    folder = save(tmp_path / "model", FSMT, tensors)
    (finding,) = tieconv.inspect(folder).findings
    assert finding.rule == "TIE011" and finding.tensors == (DECODER, PROJECTION)
    assert "in place of the canonical name" not in ok("inspect", folder).stdout
    ok("untie", folder, "-o", tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert (after[DECODER] == tensors[PROJECTION]).all() and (after[ENCODER] == tensors[ENCODER]).all()
    assert tieconv.inspect(tmp_path / "out").findings == ()


SAVED = {
    "the head for both": ({ENCODER: 0, PROJECTION: 1}, "untied"),
    "the decoder's table for both": ({ENCODER: 0, DECODER: 1}, "random error"),
    "two that differ": ({ENCODER: 0, DECODER: 1, PROJECTION: 2}, "discarded"),
    "two that are equal": ({ENCODER: 0, DECODER: 1, PROJECTION: 1}, "untied"),
    "neither": ({ENCODER: 0}, "random"),
    "no encoder's table": ({DECODER: 1, PROJECTION: 1}, "random"),
}
"""Tables by their seeds, and what transformers 4.48.3 and 4.57.6 make of them, untied: decoder and head are one."""


@pytest.mark.parametrize("name", SAVED)
def test_fsmt_in_transformers_4(name: str, tmp_path: Path) -> None:
    """As measured. What is thrown away although the config declares the model untied has no command."""
    seeds, outcome = SAVED[name]
    folder = save(tmp_path, FSMT, {key: matrix(seed=seed) for key, seed in seeds.items()})
    evidence = tieconv.inspect(folder, consumers="transformers<5")
    release_448, release_457 = (str(entry.outcome) for entry in evidence.consumers)
    assert f"{release_448} {release_457}" == outcome if " " in outcome else release_448 == release_457 == outcome
    if outcome == "discarded":
        (lost,) = [entry for entry in evidence.findings if entry.rule == "CON002"]
        assert lost.tensors == (DECODER,) and lost.remedy is None
        assert run("check --for transformers==4.57 --fix", folder).exit_code == 1
