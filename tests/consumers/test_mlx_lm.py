"""mlx-lm: what its config classes, its names and its shapes decide, in the two releases that the oracle runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import (
    BERT,
    HEAD,
    LLAMA,
    Config,
    Tensors,
    flagged,
    llama,
    matrix,
    save,
    vector,
    weights,
)
from tests.loops import case as in_case, fresh
from tieconv.checkpoint.finding import Prediction
from tieconv.errors import RefusedError
from tieconv.loaders import release_tables

EMBED = "model.embed_tokens.weight"
OWN, BOTH, LONGER = llama(head=matrix(seed=1)), llama(head=matrix()), llama(head=matrix(16, seed=1))
LAYER = "model.layers.0.self_attn"


def config(architecture: str, model_type: str, **values: object) -> Config:
    """Return a config with every key that mlx-lm requires; the flag is only in ``values``."""
    keys = release_tables.by_type("mlx-lm-0.32", "required keys")[model_type]
    widths = ("hidden_size", "n_embd")
    sizes: Config = {key: matrix().shape[1] if key in widths else 1 for key in keys if key != "tie_word_embeddings"}
    known = {"architectures": [architecture], "model_type": model_type, "vocab_size": len(matrix())}
    return sizes | known | values


def predicted(folder: Path, settings: Config, tensors: Tensors, spec: str = "mlx-lm==0.32") -> Prediction:
    (found,) = api.inspect(save(folder / "model", settings, tensors), consumers=spec).consumers
    return found


TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)
QWEN3 = config("Qwen3ForCausalLM", "qwen3")
OLMO2 = config("Olmo2ForCausalLM", "olmo2", tie_word_embeddings=True)
ERNIE = config("Ernie4_5ForCausalLM", "ernie4_5", tie_word_embeddings=True)
HELIUM = config("HeliumForCausalLM", "helium", tie_word_embeddings=True)
KIMI = config("DeepseekV3ForCausalLM", "deepseek_v3") | {"model_type": "kimi_k2"}
GLM = config("Glm4MoeForCausalLM", "glm4_moe")
PHI = config("PhiForCausalLM", "phi")
HYBRID = config("GraniteMoeHybridForCausalLM", "granitemoehybrid", layer_types=["linear_attention"])
NEXT = config("Qwen3NextForCausalLM", "qwen3_next", layer_types=["linear_attention", "full_attention"])
FALCON = config("FalconH1ForCausalLM", "falcon_h1", num_attention_heads=1)
GRIFFIN = config("RecurrentGemmaForCausalLM", "recurrent_gemma", hidden_size=4, lru_width=8)
BIGCODE = config("GPTBigCodeForCausalLM", "gpt_bigcode", n_inner=None)
SPARK = config("MuseSparkForConditionalGeneration", "muse_spark", text_config={"vocab_size": 8}, vocab_size=...)
WIDE = {"model.language_model.embed_tokens.weight": matrix(16), HEAD: matrix(16, seed=1)}
QUERY = {f"{LAYER}.q_proj.weight": matrix(4, 4)}
WTE = {"wte.weight": matrix()}
GPT2 = config("GPT2LMHeadModel", "gpt2", tie_word_embeddings=True)
CASES: dict[str, tuple[Config, Tensors, str, str]] = {
    "a longer head": (UNTIED, LONGER, "error", "lm_head.weight has 16 rows, and mlx-lm's model has 8"),
    "a longer head that is dropped": (TIED, LONGER, "discarded", "replaces lm_head.weight"),
    "more rows than the config": (TIED, {EMBED: matrix(16)}, "error", "has 16 rows, and mlx-lm's model has 8"),
    "more rows than the text config": (SPARK, WIDE, "error", "has 16 rows, and mlx-lm's model has 8"),
    "null is false": ({**LLAMA, "tie_word_embeddings": None}, llama(), "error", "does not contain lm_head.weight"),
    "an absent flag is the default": (LLAMA, llama(), "tied", "one parameter"),
    "a required flag": (QWEN3, BOTH, "error", "has no tie_word_embeddings"),
    "a head that is refused": (OLMO2, BOTH, "error", "has no parameter lm_head.weight"),
    "Helium needs a head": (HELIUM, llama(), "error", "does not contain lm_head.weight"),
    "Helium takes an equal head": (HELIUM, BOTH, "tied", "one parameter"),
    "Helium does not use another head": (HELIUM, OWN, "discarded", "replaces lm_head.weight"),
    "a head bias that must be stored": (PHI, OWN, "error", "does not contain lm_head.bias"),
    "a head bias": (PHI, {**OWN, "lm_head.bias": vector()}, "untied", "two parameters"),
    "a class without a head": ({**TIED, "architectures": ["LlamaModel"]}, llama(), "unknown", "no output head"),
    "no such model type": (BERT, llama(), "error", "has no model of type bert"),
    "no model type": ({k: v for k, v in TIED.items() if k != "model_type"}, llama(), "error", "has no model_type"),
    "a key that is not there": ({**TIED, "rms_norm_eps": ...}, llama(), "error", "the config has no rms_norm_eps"),
    "a size that is null": (BIGCODE, {"transformer.wte.weight": matrix()}, "error", "no value for n_inner"),
    "a text config that is null": ({**TIED, "text_config": None}, llama(), "error", "has no text_config"),
    "an unknown layer": (HYBRID, llama(), "error", "does not have the layer type linear_attention"),
    "layers at another interval": (NEXT, OWN, "error", "every 4th layer"),
    "a head size by default": (FALCON, {**llama(), **QUERY}, "error", "does not fit mlx-lm's default of 64"),
    "two widths": (GRIFFIN, llama(), "error", "lru_width to be 1 times hidden_size"),
    "GPT-2 as transformers saves it": (GPT2, {"transformer.wte.weight": matrix()}, "error", "has no parameter"),
    "GPT-2 as on the Hub": (GPT2, WTE, "tied", "one parameter"),
    "no prefix": (TIED, {"embed_tokens.weight": matrix()}, "error", "has no parameter embed_tokens.weight"),
    "frequencies that are dropped": (TIED, {**llama(), f"{LAYER}.rotary_emb.inv_freq": vector()}, "tied", "one"),
    "frequencies": (ERNIE, {**llama(), f"{LAYER}.rotary_emb.inv_freq": vector()}, "error", "inv_freq"),
    "a required flag that decides nothing": (GLM, OWN, "error", "has no tie_word_embeddings"),
    "a type with the file of another": (KIMI, OWN, "unknown", "no measurement"),
    "a class of another type": (
        {**TIED, "model_type": "mamba"},
        llama(),
        "unknown",
        "no measurement of LlamaForCausalLM",
    ),
}


def test_outcome(tmp_path: Path) -> None:
    """One outcome, and a sentence with its reason."""
    for case in CASES:
        with in_case(case):
            folder = fresh(tmp_path)
            settings, tensors, outcome, reason = CASES[case]
            found = predicted(folder, {key: value for key, value in settings.items() if value is not ...}, tensors)
            assert (str(found.outcome), found.basis) == (outcome, "ran 0.32.2")
            assert reason in found.detail


COMPOSITE_EMBED, COMPOSITE_HEAD = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"


def composite(model_type: str, architecture: str, text_type: str, **flags: bool) -> Config:
    """Return the config of a composite; ``top`` and ``text`` are the flags of both levels."""
    levels = {name: {"tie_word_embeddings": flag} for name, flag in flags.items()}
    text = config("", text_type) | levels.get("text", {})
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": len(matrix()),
        "text_config": text,
        **levels.get("top", {}),
    }


@pytest.mark.parametrize(
    ("flags", "stored", "outcome"),
    [
        ({"top": True}, (), "error"),  # the text config has no flag: the composite sets it to false
        ({"top": False, "text": True}, (), "tied"),
        ({"top": True, "text": False}, (COMPOSITE_HEAD,), "untied"),
    ],
)
def test_the_flag_of_the_text_config(
    flags: dict[str, bool], stored: tuple[str, ...], outcome: str, tmp_path: Path
) -> None:
    """Mistral 3 reads the flag of its text config."""
    settings = composite("mistral3", "Mistral3ForConditionalGeneration", "llama", **flags)
    tensors = {COMPOSITE_EMBED: matrix(), **dict.fromkeys(stored, matrix(seed=1))}
    assert str(predicted(tmp_path, settings, tensors).outcome) == outcome


@pytest.mark.parametrize("flag", [True, False])
def test_gemma3_follows_the_file(flag: bool, tmp_path: Path) -> None:
    """Gemma 3 is tied exactly if no head is stored, with any flag."""
    settings = composite("gemma3", "Gemma3ForConditionalGeneration", "gemma3_text", top=flag, text=flag)
    alone = {COMPOSITE_EMBED: matrix()}
    assert str(predicted(tmp_path / "alone", settings, alone).outcome) == "tied"
    both = {**alone, COMPOSITE_HEAD: matrix(seed=1)}
    assert str(predicted(tmp_path / "both", settings, both).outcome) == "untied"
    outside = predicted(tmp_path / "outside", settings, {**alone, HEAD: matrix(seed=1)})
    assert outside.detail == "lm_head.weight is outside language_model., and tieconv has no measurement of that"


@pytest.mark.parametrize(
    ("architecture", "model_type", "tensors", "older", "newer"),
    [
        ("MixtralForCausalLM", "mixtral", llama(), "error", "tied"),
        ("Qwen3MoeForCausalLM", "qwen3_moe", BOTH, "untied", "tied"),
        ("GraniteForCausalLM", "granite", BOTH, "error", "tied"),
        ("GPTJForCausalLM", "gptj", llama(), "error", "error"),
    ],
)
def test_two_releases(
    architecture: str, model_type: str, tensors: Tensors, older: str, newer: str, tmp_path: Path
) -> None:
    """Release 0.28.4 has other classes than 0.32.2; a release between them is not claimed to have run."""
    settings = config(architecture, model_type, tie_word_embeddings=True)
    folder = save(tmp_path / "model", settings, tensors)
    first, second = api.inspect(folder, consumers="mlx-lm").consumers
    assert [str(first.outcome), str(second.outcome)] == [older, newer]
    assert (first.basis, second.basis) == ("ran 0.28.4", "ran 0.32.2")
    (between,) = api.inspect(folder, consumers="mlx-lm==0.30").consumers
    assert between.basis == "between 0.28.4 and 0.32.2, which ran"


@pytest.mark.parametrize(
    ("name", "flag", "outcome"),
    [
        ("model-extra.safetensors", False, "untied"),
        ("model-extra.safetensors", True, "unknown"),  # nothing compared the head of an unused file
        ("extra.safetensors", False, "error"),
        ("extra.safetensors", True, "tied"),
    ],
)
def test_a_head_in_an_unused_file(name: str, flag: bool, outcome: str, tmp_path: Path) -> None:
    """mlx-lm reads every model*.safetensors, also those that the index does not name."""
    folder = save(tmp_path / "model", flagged(LLAMA, flag), llama())
    (folder / name).write_bytes(weights({HEAD: matrix(seed=1)}))
    (found,) = api.inspect(folder, consumers="mlx-lm==0.32").consumers
    assert str(found.outcome) == outcome


def test_every_file_has_its_required_keys() -> None:
    """The table of required keys lists the files of the release: an absent type is an error of the loader."""
    for release, count in (("0.28", 85), ("0.32", 120)):
        tables = f"mlx-lm-{release}"
        files = release_tables.by_type(tables, "required keys")
        assert len(files) > count and {"llama", "qwen3", "gemma3"} <= files.keys()
        assert set(release_tables.by_type(tables, "same file").values()) <= files.keys()


def codes(name: str, seed: int) -> Tensors:
    """Return a matrix of 4-bit codes as MLX stores it, with groups of 32."""
    words = matrix(seed=seed).view("<u4")
    scales = matrix(8, 1, seed=seed)
    return {f"{name}.weight": words, f"{name}.scales": scales, f"{name}.biases": scales}


def test_codes_follow_the_class(tmp_path: Path) -> None:
    """A class ties its codes as it ties floats. Each state was run with mlx-lm 0.32.2."""
    settings: Config = {"quantization": {"bits": 4, "group_size": 32}}
    body, embedding, head = {"model.norm.weight": vector()}, codes("model.embed_tokens", 1), codes("lm_head", 2)
    one, both = {**body, **embedding}, {**body, **embedding, **head}
    llama_like = config("LlamaForCausalLM", "llama") | settings
    cohere = config("CohereForCausalLM", "cohere") | settings
    gemma = config("Gemma3ForCausalLM", "gemma3_text", head_dim=1) | settings
    cases = {
        "llama, tied": (llama_like | {"tie_word_embeddings": True}, one, "tied"),
        "llama, untied": (llama_like | {"tie_word_embeddings": False}, both, "untied"),
        "llama, tied, both": (llama_like | {"tie_word_embeddings": True}, both, "error"),
        "llama, untied, no head": (llama_like | {"tie_word_embeddings": False}, one, "error"),
        "cohere, always tied": (cohere | {"tie_word_embeddings": False}, one, "tied"),
        "cohere, a head": (cohere | {"tie_word_embeddings": False}, both, "error"),
        "gemma 3, a head": (gemma | {"tie_word_embeddings": True}, both, "untied"),
        "gemma 3, no head": (gemma | {"tie_word_embeddings": False}, one, "tied"),
    }
    for case, (values, tensors, outcome) in cases.items():
        sized = {**values, "hidden_size": 32}
        assert str(predicted(tmp_path / case, sized, tensors).outcome) == outcome, case


QWEN25: Config = {
    **config("Qwen2_5_VLForConditionalGeneration", "qwen2_vl", tie_word_embeddings=True),
    "model_type": "qwen2_5_vl",
    "quantization": {"bits": 4, "group_size": 32},
}


def of_mlx(tied: bool, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return a Qwen2.5-VL as mlx-vlm writes it: every name of the language model below ``language_model.``."""
    keys = release_tables.by_type("mlx-lm-0.32", "required keys")["qwen2_vl"]
    text = dict.fromkeys(keys, 1) | {
        "model_type": "qwen2_5_vl_text",
        "vocab_size": 8,
        "hidden_size": 32,
        "rms_norm_eps": 1e-6,
    }
    values = QWEN25 | text | {"model_type": "qwen2_5_vl", "tie_word_embeddings": tied}
    return values | {"text_config": text | {"tie_word_embeddings": tied}}, {
        "language_model.model.norm.weight": vector(),
        **tensors,
    }


def test_names_of_mlx_vlm(tmp_path: Path) -> None:
    """They are judged by the loaders that know them: transformers does not decide, and nothing is missing."""
    embedding, head = codes("language_model.model.embed_tokens", 1), codes("language_model.lm_head", 2)
    for tied, tensors in ((True, embedding), (False, embedding | head)):
        folder = save(tmp_path / str(tied), *of_mlx(tied, tensors))
        inspection = api.inspect(folder, consumers="transformers,mlx-lm==0.32")
        assert [finding.rule for finding in inspection.findings if finding.level != "note"] == [], tied
        assert inspection.config.effective is tied
        answers = {consumer.name: str(consumer.outcome) for consumer in inspection.consumers}
        assert answers["transformers"] == "unknown", tied
    untied = api.plan_untie(tmp_path / "True").execute(tmp_path / "out").output
    assert set(codes("language_model.lm_head", 1)) <= api.inspect(untied).checkpoint.tensors.keys()


def test_verbs_for_files_of_mlx(tmp_path: Path) -> None:
    """A result that mlx-lm refuses is refused, and codes under two names are the same function as one tied module."""
    cohere = config("CohereForCausalLM", "cohere", hidden_size=4)
    folder = save(tmp_path / "cohere", cohere | {"tie_word_embeddings": True}, llama())
    (folder / "model.safetensors").write_bytes(weights(llama(), {"format": "mlx"}))
    with pytest.raises(RefusedError, match=r"mlx-lm 0\.32 would not load the result"):
        api.plan_untie(folder)
    values = config("LlamaForCausalLM", "llama", hidden_size=32, tie_word_embeddings=True)
    tied = save(
        tmp_path / "tied",
        values | {"quantization": {"bits": 4, "group_size": 32}},
        {"model.norm.weight": vector(), **codes("model.embed_tokens", 1)},
    )
    other = save(
        tmp_path / "other",
        values | {"quantization": {"bits": 4, "group_size": 32}},
        {"model.norm.weight": vector(), **codes("model.embed_tokens", 2)},
    )
    untied = api.plan_untie(tied).execute(tmp_path / "untied").output
    assert api.diff(tied, untied).same_function
    assert not api.diff(tied, other).same_function
