"""The states of a quantised pair: what `inspect` finds, what each verb does, and how each loader loads the model.

Each state is a tiny checkpoint with a quantised layer in its body. The numbers are those of the list of states that the
rules were written from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv
from tests.inspection.quantised.stored_models import (
    AWQ,
    BNB,
    EMBED,
    GPTQ,
    HEAD,
    MLX_CONFIG,
    NAMED,
    ROWS,
    WIDTH,
    Parts,
    awq,
    bitsandbytes,
    compressed,
    config,
    fp8,
    gptq,
    in_floats,
    in_groups,
    mlx,
    packed,
    save,
    tensor,
    under,
)
from tests.inspection.quantised.test_formulas import packed as packed_rows
from tieconv.loaders.registry import consumer
from tieconv.loaders.release_tables import GENAI, LLAMA_CPP, MLX, TRANSFORMERS, VLLM, VLLM_028

LOADERS = (TRANSFORMERS, VLLM_028, VLLM, LLAMA_CPP, MLX, GENAI)
WORDS = {"t": "tied", "u": "untied", "r": "random", "d": "discarded", "e": "error", "?": "unknown"}


def leaving_out(entries: dict[str, Any], *names: str) -> dict[str, Any]:
    return {"quantization_config": entries["quantization_config"] | {"ignore": list(names)}}


def skipping(entries: dict[str, Any], key: str, *names: str) -> dict[str, Any]:
    return {"quantization_config": entries["quantization_config"] | {key: list(names)}}


def rounded(seed: int) -> Parts:
    """The float embedding in 8 bits, rounded to nearest, with a scale for each row."""
    values = floats(0)
    scales = np.abs(values).max(-1, keepdims=True) / 127
    return {"weight": tensor(np.round(values / scales).astype("i1")), "weight_scale": tensor(scales.astype("<f4"))}


def eight_bit(seed: int) -> Parts:
    """A layer of MLX in 4 bits, and for the head 8 bits."""
    words = np.random.default_rng(0).integers(0, 2**32, (ROWS, WIDTH // 4)).astype("<u4")
    return mlx(seed) | ({"weight": tensor(words)} if seed == 1 else {})


def other_scale(seed: int) -> Parts:
    """One scale of the head differs."""
    parts = packed(0)
    scales = parts["weight_scale"][1].copy()
    scales[-1, -1] += np.float32(seed == 1)
    return parts | {"weight_scale": tensor(scales)}


def three_bits(seed: int, *, gaps: bool) -> Parts:
    """The float embedding in 3 bits, rounded to nearest, in groups of 32: compressed-tensors until 0.17 left gaps."""
    values = floats(0).reshape(ROWS, -1, 32)
    scales = np.abs(values).max(-1) / 3.5
    codes = np.clip(np.round(values / scales[..., None]), -4, 3).astype("i1").reshape(ROWS, WIDTH) + 4
    return {
        "weight_packed": tensor(packed_rows(codes, 3, gaps=gaps).view("<i4")),
        "weight_scale": tensor(scales.astype("<f4")),
        "weight_shape": tensor(np.array([ROWS, WIDTH], "<i8")),
    }


def without_scales(seed: int) -> Parts:
    return {leaf: part for leaf, part in packed(seed).items() if leaf != "weight_scale" or seed != 1}


def floats(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype("<f4")


LINEAR = compressed("Linear")
BODY = leaving_out(LINEAR, "lm_head")
FLOAT8 = in_floats("re:.*lm_head$", "re:.*embed_tokens$")
INT8 = compressed("Linear", "Embedding")
INT8["quantization_config"]["config_groups"]["g"]["weights"] |= {
    "num_bits": 8,
    "strategy": "channel",
    "group_size": None,
}
THREE_BITS = compressed("re:.*lm_head$")
THREE_BITS["quantization_config"]["config_groups"]["g"]["weights"] |= {"num_bits": 3}
WIDER_HEAD = {"quantization": {"group_size": 64, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}}}


@dataclass(frozen=True)
class State:
    """``pair`` are the embedding and the head: q quantised, f float, 0 absent. ``equal``: the head has its values.

    ``rules`` are the findings with the first letter of their level. ``verbs`` are what retie, untie and set-tie auto
    do: the refusal's code, or the number of tensors dropped or added and whether the config changes. ``loads`` are the
    outcomes in the order of LOADERS.
    """

    make: Callable[[int], Parts]
    entries: dict[str, Any]
    tied: bool
    pair: str
    rules: str
    verbs: tuple[str, str, str]
    loads: str
    equal: bool = False


NOT_EQUAL, MIXED, BROKEN = "retie.not-equal", "tie.quantised", "quantised.broken"
STATES = {
    "1 tied, floats, head left out": State(packed, BODY, True, "f0", "", ("=", "+1 config", "="), "t t t t e e"),
    "2 tied, an equal float copy": State(
        packed, BODY, True, "ff", "wTIE002", ("-1", "config", "="), "t t t u e e", equal=True
    ),
    "3 tied, floats differ": State(
        packed, BODY, True, "ff", "eTIE001", (NOT_EQUAL, "config", "config"), "u d u u e e"
    ),
    "4 tied, a quantised copy of the float embedding": State(
        rounded, INT8, True, "fq", "wQNT001", (MIXED, MIXED, "config"), "? ? ? ? ? e"
    ),
    "5 tied, another quantised head": State(
        packed, NAMED, True, "fq", "eQNT006", (MIXED, MIXED, "config"), "e r u u e e"
    ),
    "5 in GPTQ": State(gptq, GPTQ, True, "fq", "eQNT006", (MIXED, MIXED, "meaning.refused"), "d r u u e e"),
    "5 in AWQ": State(awq, AWQ, True, "fq", "eQNT006", (MIXED, MIXED, "meaning.refused"), "d r u e e e"),
    "5 in bitsandbytes": State(bitsandbytes, BNB, True, "fq", "eQNT006", (MIXED, MIXED, "config"), "u ? ? e ? e"),
    "6 untied, quantised head": State(packed, NAMED, False, "fq", "", (MIXED, "=", "="), "u u u u e e"),
    "6 named by class": State(packed, LINEAR, False, "fq", "", (MIXED, "=", "="), "u e e u e e"),
    "7 tied, packed embedding": State(packed, NAMED, True, "q0", "wQNT010", ("=", "+3 config", "="), "e e e t e e"),
    "8 tied, FP8 embedding": State(fp8, FLOAT8, True, "q0", "eQNT010", ("=", "+2 config", "="), "r ? ? t e e"),
    "9 tied, equal packed parts": State(
        packed, NAMED, True, "qq", "wQNT007", ("-3 config", "config", "="), "e e e u e e", equal=True
    ),
    "10 tied, packed parts differ": State(
        packed, NAMED, True, "qq", "eQNT006", (NOT_EQUAL, "config", "config"), "e e e u e e"
    ),
    "11 untied, equal packed parts": State(
        packed, NAMED, False, "qq", "nQNT007", ("-3 config", "=", "config"), "e e e u e e", equal=True
    ),
    "12 one scale differs": State(other_scale, NAMED, False, "qq", "", (NOT_EQUAL, "=", "="), "e e e u e e"),
    "13 untied, two schemes": State(eight_bit, WIDER_HEAD, False, "qq", "", (NOT_EQUAL, "=", "="), "e ? ? ? e e"),
    "14 tied, float head": State(
        packed, compressed("re:.*embed_tokens$"), True, "qf", "eQNT006", (NOT_EQUAL, "config", "config"), "e e e u e e"
    ),
    "15 untied, floats, no head": State(
        packed, BODY, False, "f0", "eTIE003", ("config", "+1", "config"), "r r r t e e"
    ),
    "15 untied, codes, no head": State(
        packed, NAMED, False, "q0", "eTIE003", ("config", "+3", "config"), "e e e t e e"
    ),
    "16 codes without scales": State(
        without_scales, NAMED, False, "fq", "eQNT002", (BROKEN, BROKEN, "set-tie.ambiguous"), "? ? ? ? ? e"
    ),
    "17 the config leaves out stored codes": State(
        packed, leaving_out(NAMED, "lm_head"), False, "fq", "eQNT008", (MIXED, "config", "config"), "r e e u e e"
    ),
    "17 no target lists stored codes": State(
        packed, compressed("re:.*up_proj$"), False, "fq", "eQNT008", (MIXED, "config", "config"), "r e e u e e"
    ),
    "17 in GPTQ": State(
        gptq, in_groups("gptq"), False, "fq", "eQNT008", (MIXED, "config", "config"), "r e e u e u",
    ),
    "18 untied, the config lists a float head": State(
        packed, LINEAR, False, "ff", "eQNT009", (NOT_EQUAL, "config", "config"), "r u u u e e"
    ),
    "18 listed by name": State(
        packed, NAMED, False, "ff", "eQNT009", (NOT_EQUAL, "config", "config"), "r e e u e e"
    ),
    "18 tied, the config lists the copy": State(
        packed, LINEAR, True, "ff", "eQNT009 wTIE002", ("-1 config", "config", "config"), "e t t u e e", equal=True
    ),
    "18 tied, the config lists an absent head": State(
        packed, NAMED, True, "f0", "eQNT009", ("config", "+1 config", "config"), "e r r t e e"
    ),
    "19 bitsandbytes does not skip the tied head": State(
        bitsandbytes, BNB, True, "f0", "eQNT009", ("config", "+1 config", "config"), "e ? ? t e e"
    ),
    "19 skipped": State(
        bitsandbytes, skipping(BNB, "llm_int8_skip_modules", "lm_head"), True, "f0", "", ("=", "+1 config", "="),
        "t t t t e e",
    ),
    "20 MLX, equal parts": State(
        mlx, MLX_CONFIG, True, "qq", "wQNT007", ("-3", "config", "="), "e ? ? ? e e", equal=True
    ),
    "20 MLX, parts differ": State(
        mlx, MLX_CONFIG, True, "qq", "eQNT006", (NOT_EQUAL, "config", "config"), "e ? ? ? e e"
    ),
    "21 MLX, float head": State(
        mlx, MLX_CONFIG, True, "qf", "eQNT006", (NOT_EQUAL, "config", "config"), "e ? ? ? e e"
    ),
    "26 a copy in 3 bits": State(
        partial(three_bits, gaps=False), THREE_BITS, True, "fq", "wQNT001", (MIXED, MIXED, "config"), "e r u ? e e"
    ),
    "26 in 3 bits with gaps": State(
        partial(three_bits, gaps=True), THREE_BITS, True, "fq", "wQNT001", (MIXED, MIXED, "config"), "e r u ? e e"
    ),
    "27 GPTQ, untied": State(gptq, GPTQ, False, "fq", "wQNT010", (MIXED, "=", "="), "r u u u e u"),
}  # fmt: skip


def write(folder: Path, state: State) -> Path:
    """The checkpoint of a state."""
    tensors = {"model.norm.weight": tensor(np.ones(WIDTH, "<f4"))}
    tensors |= under("model.layers.0.mlp.up_proj", state.make(7))
    for number, (module, form) in enumerate(zip((EMBED, HEAD), state.pair, strict=True)):
        seed = 0 if state.equal else number
        parts: Parts = {"weight": tensor(floats(seed))} if form == "f" else state.make(seed)
        tensors |= under(module, parts if form != "0" else {})
    return save(folder, config(ROWS, WIDTH, state.tied, **state.entries), tensors)


def done(verb: Callable[[], Any], out: Path) -> str:
    """What a verb does, or the code of its refusal. It is carried out too."""
    try:
        plan = verb()
    except tieconv.RefusedError as error:
        return error.code
    if plan.plan.changes_nothing:
        return "="
    plan.execute(out)
    kinds = [type(operation).__name__ for operation in plan.plan.operations]
    dropped, added = (sum(kind.startswith(word) for kind in kinds) for word in ("DropTensor", "CopyTensor"))
    words = [f"-{dropped}" if dropped else "", f"+{added}" if added else "", "config" if "SetConfig" in kinds else ""]
    return " ".join(word for word in words if word)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", STATES)
def test_findings_verbs_and_loaders(name: str, tmp_path: Path) -> None:
    state = STATES[name]
    folder = write(tmp_path / "m", state)
    inspection = tieconv.inspect(folder)
    found = {f"{finding.level!s:.1}{finding.rule}" for finding in inspection.findings}
    assert found == set(state.rules.split())
    verbs = (
        lambda: tieconv.plan_retie(folder),
        lambda: tieconv.plan_untie(folder),
        lambda: tieconv.plan_set_tie("auto", folder),
    )
    assert tuple(done(verb, tmp_path / str(number)) for number, verb in enumerate(verbs)) == state.verbs
    assert [str(consumer(*loader).predict(inspection).outcome) for loader in LOADERS] == [
        WORDS[letter] for letter in state.loads.split()
    ]


@pytest.mark.parametrize("name", [name for name, state in STATES.items() if "QNT006" in state.rules])
def test_a_head_that_differs_gets_the_flag_or_the_advice_to_quantise_again(name: str, tmp_path: Path) -> None:
    """`set-tie false` is offered where it is not refused. transformers reads GPTQ and AWQ codes only in the blocks."""
    folder = write(tmp_path / "m", STATES[name])
    (finding,) = [finding for finding in tieconv.inspect(folder).findings if finding.rule == "QNT006"]
    refused = done(lambda: tieconv.plan_set_tie("false", folder), tmp_path / "out") == "meaning.refused"
    assert (
        refused
        is (finding.remedy is None)
        is finding.message.endswith("Quantise the model again, without the head or from an untied model.")
    )


@pytest.mark.parametrize("name", [name for name in STATES if name.startswith(("17", "18", "19 b"))])
def test_set_tie_corrects_the_quantisation_config(name: str, tmp_path: Path) -> None:
    """After it, the config lists the head only if its codes are stored, and no tensor has changed."""
    folder = write(tmp_path / "m", STATES[name])
    tieconv.plan_set_tie("auto", folder).execute(tmp_path / "out")
    inspection = tieconv.inspect(tmp_path / "out")
    assert not {"QNT008", "QNT009"} & {finding.rule for finding in inspection.findings}
    assert inspection.quantisation is not None
    assert (str(inspection.quantisation.head.verdict) == "quantised") is ("q" in STATES[name].pair)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    again = tieconv.plan_set_tie("auto", tmp_path / "out").plan
    assert again.changes_nothing


def test_the_config_of_mixed_descriptions_is_left_alone(tmp_path: Path) -> None:
    """Two descriptions that differ: set-tie writes the flag alone."""
    entries = LINEAR | {"compression_config": {"quant_method": "compressed-tensors", "ignore": ["x"]}}
    state = State(packed, entries, True, "ff", "", ("", "", ""), "")
    tieconv.plan_set_tie("auto", write(tmp_path / "m", state)).execute(tmp_path / "out")
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["tie_word_embeddings"] is False and values["quantization_config"] == entries["quantization_config"]


def test_a_group_with_other_numbers_does_not_list_the_head(tmp_path: Path) -> None:
    """Codes of 4 bits beside the only group, which has 8: nothing is written, and QNT008 stays."""
    entries = compressed("re:.*up_proj$")
    entries["quantization_config"]["config_groups"]["g"]["weights"] |= {"num_bits": 8}
    folder = write(tmp_path / "m", State(packed, entries, False, "fq", "", ("", "", ""), ""))
    assert tieconv.plan_set_tie("auto", folder).plan.changes_nothing
    assert "QNT008" in [finding.rule for finding in tieconv.inspect(folder).findings]
