"""Quantised embeddings and heads: each loader's answer is the one that was measured, and every other is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.inspection.quantised.stored_models import (
    AWQ,
    BNB,
    BY_CLASS,
    GPTQ,
    MLX_CONFIG,
    MLX_SIZES,
    NAMED,
    UNLISTED,
    UNLISTED_GPTQ,
    Parts,
    awq,
    bitsandbytes,
    equal,
    fp8,
    gptq,
    in_floats,
    mlx,
    model,
    packed,
)
from tieconv import inspect
from tieconv.loaders.registry import consumer
from tieconv.loaders.release_tables import GENAI, LLAMA_CPP, MLX, TRANSFORMERS, VLLM, VLLM_028, quantised_cells

LOADERS = (TRANSFORMERS, VLLM_028, VLLM, LLAMA_CPP, MLX)

# Scheme, config, flag, tables (embedding, head), and the outcomes in the order of LOADERS: tied, untied, random,
# discarded, error or ? for unknown. From the table of measured facts, not from the module.
CASES: tuple[tuple[Any, dict[str, Any], bool, str, str], ...] = (
    (packed, NAMED, True, "fq", "e r u u e"),
    (packed, NAMED, True, "q0", "e e e t e"),
    (packed, NAMED, True, "qq", "e e e u e"),
    (packed, NAMED, True, "qf", "e e e u e"),
    (packed, NAMED, False, "fq", "u u u u e"),
    (packed, NAMED, False, "qq", "e e e u e"),
    (packed, BY_CLASS, True, "fq", "e d e u e"),
    (packed, BY_CLASS, False, "fq", "u e e u e"),
    (fp8, in_floats("re:.*lm_head$", "re:.*embed_tokens$"), True, "q0", "r ? ? t e"),
    (fp8, in_floats("re:.*embed_tokens$"), True, "q0", "e ? ? t e"),
    (fp8, in_floats("re:.*lm_head$", "re:.*embed_tokens$"), False, "q0", "e ? ? t e"),
    (fp8, in_floats("re:.*embed_tokens$"), False, "q0", "r ? ? t e"),
    (fp8, in_floats("re:.*lm_head$"), False, "fq", "u ? ? u e"),
    (gptq, GPTQ, True, "fq", "d r u u e"),
    (gptq, GPTQ, True, "q0", "r e e t e"),
    (gptq, GPTQ, False, "fq", "r u u u e"),
    (gptq, GPTQ, False, "qq", "r e e u e"),
    (awq, AWQ, True, "fq", "d r u e e"),
    (awq, AWQ, False, "fq", "r u u e u"),
    (awq, UNLISTED, True, "fq", "d d e e e"),
    (mlx, MLX_CONFIG, True, "q0", "e ? ? ? t"),
    (mlx, MLX_CONFIG, True, "fq", "e ? ? ? e"),
    (mlx, MLX_CONFIG, True, "qf", "e ? ? ? d"),
    (mlx, MLX_CONFIG, False, "qq", "e ? ? ? u"),
    (mlx, MLX_CONFIG, False, "q0", "e ? ? ? e"),
)
WORDS = {"t": "tied", "u": "untied", "r": "random", "d": "discarded", "e": "error", "?": "unknown"}


@pytest.mark.parametrize(
    ("make", "entries", "tied", "pair", "outcomes"),
    CASES,
    ids=[
        f"{make.__name__}-{number}-{'tied' if tied else 'untied'}-{pair}"
        for number, (make, _, tied, pair, _) in enumerate(CASES)
    ],
)
def test_measured(make: Any, entries: dict[str, Any], tied: bool, pair: str, outcomes: str, tmp_path: Path) -> None:
    """The outcome of each loader for one combination."""
    inspection = inspect(model(tmp_path, make, entries, tied, pair))
    predicted = [consumer(*loader).predict(inspection) for loader in LOADERS]
    assert [str(each.outcome) for each in predicted] == [WORDS[letter] for letter in outcomes.split()]
    stored = {part.name for matrix in inspection.quantised.matrices for part in matrix.parts}
    assert all(set(each.tensors) == stored for each in predicted if str(each.outcome) != "error" and each.tensors)


GENAI_CASES: tuple[tuple[Any, dict[str, Any], bool, str, str, str], ...] = (
    (gptq, GPTQ, True, "fq", "error", "another rank"),
    (gptq, GPTQ, False, "fq", "untied", "its own quantised codes"),
    (gptq, GPTQ, False, "qq", "error", "codes of a quantised embedding"),
    (gptq, GPTQ, True, "ff", "discarded", "replaces model.embed_tokens.weight"),
    (gptq, GPTQ, False, "f0", "tied", ""),
    (gptq, UNLISTED_GPTQ, False, "f0", "tied", ""),
    (gptq, UNLISTED_GPTQ, False, "ff", "untied", ""),
    (awq, AWQ, True, "fq", "error", "another rank"),
    (awq, UNLISTED, False, "fq", "untied", "its own quantised codes"),
    (awq, AWQ, True, "q0", "error", "codes of a quantised embedding"),
    (awq, AWQ, False, "f0", "tied", ""),
    (packed, NAMED, False, "fq", "error", "model.language_model."),
    (packed, NAMED, True, "f0", "error", "model.language_model."),
    (bitsandbytes, BNB, False, "fq", "error", "the quantisation method bitsandbytes"),
    (bitsandbytes, BNB, True, "f0", "error", "the quantisation method bitsandbytes"),
    (gptq, {"quantization_config": {"quant_method": "quark"}}, True, "f0", "unknown", "no measurement"),
)


@pytest.mark.parametrize(("make", "entries", "tied", "pair", "outcome", "words"), GENAI_CASES)
def test_genai(
    make: Any, entries: dict[str, Any], tied: bool, pair: str, outcome: str, words: str, tmp_path: Path
) -> None:
    """The builder reads quantised checkpoints itself: an absent head is the embedding, under either flag."""
    predicted = consumer(*GENAI).predict(inspect(model(tmp_path, make, entries, tied, pair)))
    assert str(predicted.outcome) == outcome and words in predicted.detail


def test_genai_of_another_class(tmp_path: Path) -> None:
    """Llama and Qwen 2 were run; a composite of NVIDIA's quantiser was not."""
    for name, make, entries, words in (
        ("measured", gptq, UNLISTED_GPTQ, "no measurement of onnxruntime-genai for gptq"),
        ("refused", bitsandbytes, BNB, "does not read the quantisation method bitsandbytes"),
    ):
        other = inspect(model(tmp_path / name, make, entries, False, "f0", kind="Mistral"))
        assert words in consumer(*GENAI).predict(other).detail
    nested = tmp_path / "nested"
    (path,) = model(nested, packed, NAMED, True, "f0").glob("*.safetensors")
    renamed = path.read_bytes().replace(b'"model.embed_tokens.weight": ', b'"model.language_model.e.ww": ')
    path.write_bytes(renamed)
    assert str(consumer(*GENAI).predict(inspect(nested)).outcome) == "unknown"


def test_what_was_not_measured_is_unknown(tmp_path: Path) -> None:
    """Two schemes, another class in vLLM, an older release: no claim is made."""
    mixed = model(tmp_path / "mixed", packed, BY_CLASS, False, "qf")
    assert str(consumer(*VLLM).predict(inspect(mixed)).outcome) == "unknown"
    other = inspect(model(tmp_path / "other", packed, NAMED, True, "q0", kind="Mistral"))
    assert str(consumer(*VLLM).predict(other).outcome) == "unknown"
    assert str(consumer("transformers", "4.57").predict(other).outcome) == "unknown"
    assert str(consumer(*TRANSFORMERS).predict(other).outcome) == "error"


def test_a_config_without_a_method_has_no_answer(tmp_path: Path) -> None:
    """Every run had a config that names the quantiser."""
    inspection = inspect(model(tmp_path, gptq, {}, False, "fq"))
    assert str(consumer(*TRANSFORMERS).predict(inspection).outcome) == "unknown"


def test_a_broken_matrix_has_no_answer(tmp_path: Path) -> None:
    """Codes without scales: nothing is said about what a loader makes of them."""

    def without_scales(seed: int) -> Parts:
        return {name: part for name, part in packed(seed).items() if name != "weight_scale"}

    inspection = inspect(model(tmp_path, without_scales, NAMED, False, "fq"))
    predicted = consumer(*TRANSFORMERS).predict(inspection)
    assert str(predicted.outcome) == "unknown" and "broken" in predicted.detail


def test_every_cell_can_be_the_answer() -> None:
    """No cell is hidden behind an earlier one with the same conditions."""
    for cells in quantised_cells().values():
        conditions = [
            (
                cell.schemes,
                cell.tied,
                cell.tables,
                cell.named,
                cell.left_out,
                cell.classes,
                cell.bits,
                cell.head_listed,
                cell.symmetric,
            )
            for cell in cells
        ]
        assert len(set(conditions)) == len(conditions)


def test_auto_round_lists_the_head(tmp_path: Path) -> None:
    """AutoRound 0.16 writes such files. With its own format, transformers 5.23 computes only NaN."""
    own = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 32,
        "sym": True,
        "packing_format": "auto_round:auto_gptq",
    }
    listed = {**own, "extra_config": {"lm_head": {"bits": 4}}}
    gptq_listed = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "lm_head": True,
                   "dynamic": {"+:.*lm_head.*": {"bits": 4}}}  # fmt: skip
    cases = {"listed": (listed, ["QNT009"], "random"), "blocks": (own, [], "untied"),
             "16 bits": ({**own, "extra_config": {"lm_head": {"bits": 16}}}, [], "untied"),
             "dynamic": (gptq_listed, ["QNT009"], "untied")}  # fmt: skip
    for case, (entries, rules, outcome) in cases.items():
        inspection = inspect(model(tmp_path / case, packed, {"quantization_config": entries}, False, "ff"))
        assert [finding.rule for finding in inspection.findings if finding.level != "note"] == rules, case
        assert str(consumer(*TRANSFORMERS).predict(inspection).outcome) == outcome, case


def test_the_basis_names_the_class_that_ran(tmp_path: Path) -> None:
    other = inspect(model(tmp_path, packed, NAMED, False, "fq", kind="Mistral"))
    assert consumer(*TRANSFORMERS).predict(other).basis == "ran 5.23.0 with LlamaForCausalLM, not with this class"


def test_helium_keeps_its_equal_head_in_mlx(tmp_path: Path) -> None:
    """mlx-lm 0.32 loads an equal quantised head of Helium, computes with the embedding, and fails without a head."""
    folder = model(tmp_path / "model", equal(mlx), MLX_SIZES, True, "qq", kind="Helium")
    evidence = inspect(folder, consumers="mlx-lm 0.32")
    assert [str(entry.outcome) for entry in evidence.consumers] == ["tied"], evidence.consumers
    (finding,) = (entry for entry in evidence.findings if entry.rule == "QNT007")
    assert (finding.level, finding.remedy) == ("note", None)
    assert finding.message.endswith(" mlx-lm needs the copy.")
