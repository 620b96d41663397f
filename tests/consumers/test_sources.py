"""Loaders that are not installed here: the outcomes that their sources give, also for Mistral's own format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tieconv as api
from tests.checks.fixtures.model import (
    BART,
    GEMMA,
    LLAMA,
    Config,
    Tensors,
    flagged,
    llama,
    matrix,
    save,
    vector,
    weights,
    with_row,
)
from tests.lazy import save_file, torch
from tests.loops import case as in_case, fresh

HEAD_ONLY: Tensors = {"lm_head.weight": matrix()}
OWN = llama(head=with_row(matrix()))
BOTH = llama(head=matrix())
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
OLMO2 = {**LLAMA, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
STABLELM = {**LLAMA, "architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
PHI = {**LLAMA, "architectures": ["PhiForCausalLM"], "model_type": "phi"}
GPT_OSS = {**LLAMA, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
GEMMA3 = {**LLAMA, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
HYBRID = {
    **LLAMA,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "tie_word_embeddings": True,
}
ATTENTION = {"layer_types": ["attention", "full_attention"], "num_hidden_layers": 2}
SMOLLM3 = {**LLAMA, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "tie_word_embeddings": True}
WHISPER = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
NEOX = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
EMBED_IN: Tensors = {"gpt_neox.embed_in.weight": matrix()}
EMBED_BOTH: Tensors = {**EMBED_IN, "embed_out.weight": with_row(matrix())}
BERT = {"architectures": ["BertForMaskedLM"], "model_type": "bert"}
SHARED: Tensors = {"model.shared.weight": matrix()}
SPEECH: Tensors = {"model.decoder.embed_tokens.weight": matrix(), "proj_out.weight": with_row(matrix())}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
MAMBA = {**LLAMA, "architectures": ["MambaForCausalLM"], "model_type": "mamba"}
MAMBA_TABLE: Tensors = {"backbone.embeddings.weight": matrix()}
TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)
BIASED = {**llama(), "lm_head.bias": vector()}
LAYER = {"model.layers.0.self_attn.q_proj.weight": matrix()}

GEMMA2 = {**TIED, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}
OMNI = flagged(
    {"architectures": ["Qwen2_5OmniForConditionalGeneration"], "model_type": "qwen2_5_omni"}, True, thinker_config=True
)
FRAGMENT = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
CASES: dict[str, tuple[str, Config | None, Tensors, str]] = {
    "transformers 5.0 reads the flag of one level": (
        "transformers==5.0",
        OMNI,
        {"thinker.model.embed_tokens.weight": matrix()},
        "tied",
    ),
    "vLLM 0.28 leaves a head out": ("vllm==0.28", TIED, OWN, "discarded"),
    "vLLM 0.29 loads it and compares": ("vllm==0.29", TIED, OWN, "untied"),
    "vLLM ties an equal copy": ("vllm==0.29", TIED, BOTH, "tied"),
    "vLLM 0.28 ties an equal copy": ("vllm==0.28", TIED, BOTH, "tied"),
    "vLLM 0.5.3 stops at a copy": ("vllm==0.5.3", TIED, BOTH, "error"),
    "vLLM 0.5.3 without a copy": ("vllm 0.5.3", TIED, llama(), "tied"),
    "vLLM 0.5.3 and a class that nobody read": ("vllm==0.5.3", flagged(MIXTRAL, True), OWN, "unknown"),
    "vLLM misses no head that is not there": ("vllm==0.29", UNTIED, llama(), "random"),
    "vLLM 0.28 the same": ("vllm==0.28", UNTIED, llama(), "random"),
    "vLLM and a head without an embedding": ("vllm==0.29", TIED, HEAD_ONLY, "random"),
    "vLLM 0.28 skips it": ("vllm==0.28", TIED, HEAD_ONLY, "random"),
    "vLLM 0.28 loads both names into one tensor": ("vllm==0.28", flagged(MIXTRAL, True), OWN, "discarded"),
    "vLLM 0.28 asserts that Gemma is tied": ("vllm==0.28", flagged(GEMMA, False), OWN, "error"),
    "vLLM drops an unknown bias": ("vllm==0.29", TIED, BIASED, "tied, dropped lm_head.bias"),
    "vLLM 0.28 loads the head as both": ("vllm==0.28", flagged(MIXTRAL, True), HEAD_ONLY, "tied"),
    "vLLM 0.29 skips the head of a class that always ties": ("vllm==0.29", GEMMA2, HEAD_ONLY, "error"),
    "llama.cpp takes a stored head": ("llama.cpp", TIED, OWN, "untied"),
    "llama.cpp ties without one, whatever the flag": ("llama.cpp", UNTIED, llama(), "tied"),
    "llama.cpp needs the embedding": ("llama.cpp", TIED, HEAD_ONLY, "error"),
    "llama.cpp needs an output of some": ("llama.cpp", flagged(STABLELM, True), llama(), "error"),
    "llama.cpp leaves Gemma's head out": ("llama.cpp", flagged(GEMMA, False), OWN, "discarded"),
    "llama.cpp counts its tensors": ("llama.cpp", TIED, BIASED, "error"),
    "mlx-lm leaves a head out": ("mlx-lm==0.32", TIED, OWN, "discarded"),
    "mlx-lm needs an untied head": ("mlx-lm==0.32", UNTIED, llama(), "error"),
    "mlx-lm takes an absent flag for true": ("mlx-lm==0.32", LLAMA, llama(), "tied"),
    "mlx-lm stops at a copy in some models": ("mlx-lm==0.32", flagged(OLMO2, True), BOTH, "error"),
    "mlx-lm requires the flag of some": ("mlx-lm==0.32", QWEN3, llama(), "error"),
    "mlx-lm requires it also in a fragment of a config": ("mlx-lm==0.32", FRAGMENT, llama(), "error"),
    "mlx-lm stops at a bias": ("mlx-lm==0.32", TIED, BIASED, "error"),
    "mlx-lm has a head of its own in some": ("mlx-lm==0.32", flagged(STABLELM, True), llama(), "error"),
    "TGI looks under the embedding's name": ("text-generation-inference", TIED, OWN, "discarded"),
    "TGI needs an untied head": ("text-generation-inference", UNTIED, llama(), "error"),
    "TGI needs the embedding": ("text-generation-inference", TIED, HEAD_ONLY, "error"),
    "TGI was not read for a bias": ("text-generation-inference", TIED, BIASED, "unknown"),
    "TGI depends on a default": ("text-generation-inference", LLAMA, llama(), "unknown"),
    "TensorRT-LLM's engine ties what is missing": ("tensorrt-llm<1", UNTIED, llama(), "tied"),
    "and from the head too": ("tensorrt-llm<1", TIED, HEAD_ONLY, "tied"),
    "and takes both": ("tensorrt-llm<1", TIED, OWN, "untied"),
    "and was not read for neither": ("tensorrt-llm<1", TIED, LAYER, "unknown"),
    "and not for a bias": ("tensorrt-llm<1", TIED, BIASED, "unknown"),
    "the PyTorch backend not either": ("tensorrt-llm>=1", TIED, BIASED, "unknown"),
    "TensorRT-LLM's PyTorch backend skips a head": ("tensorrt-llm>=1", TIED, OWN, "discarded"),
    "which it was not read to miss": ("tensorrt-llm>=1", UNTIED, llama(), "unknown"),
    "genai shares the head's matrix": ("onnxruntime-genai", TIED, OWN, "discarded"),
    "genai takes random numbers from transformers": ("onnxruntime-genai", UNTIED, llama(), "random"),
    "genai needs a config": ("onnxruntime-genai", None, OWN, "error"),
    "genai keeps two": ("onnxruntime-genai", UNTIED, OWN, "untied"),
    "genai builds Phi": ("onnxruntime-genai", flagged(PHI, False), OWN, "untied"),
    "a class that was not read": ("onnxruntime-genai", flagged(GPT_OSS, False), OWN, "unknown"),
    "genai does not build a class": ("onnxruntime-genai", flagged(STABLELM, False), OWN, "error"),
    "genai needs the name of the class": ("onnxruntime-genai", {**TIED, "architectures": []}, llama(), "error"),
    "genai takes the default of the class": ("onnxruntime-genai", GEMMA, OWN, "discarded"),
    "genai reads a setting that transformers 5 moved": ("onnxruntime-genai", GEMMA3, llama(), "error"),
    "genai builds attention layers of a hybrid": ("onnxruntime-genai", {**HYBRID, **ATTENTION}, llama(), "tied"),
    "and no Mamba layers": ("onnxruntime-genai", {**HYBRID, "layer_types": ["mamba"]}, llama(), "error"),
    "which are the default": ("onnxruntime-genai", HYBRID, llama(), "error"),
    "genai needs rotary layers": ("onnxruntime-genai", {**SMOLLM3, "no_rope_layers": [1, 0]}, llama(), "error"),
    "genai builds rotary layers": ("onnxruntime-genai", {**SMOLLM3, "no_rope_layers": [1, 1]}, llama(), "tied"),
    "genai takes a layer for the head": ("onnxruntime-genai", TIED, llama() | LAYER, "error"),
    "genai keeps Whisper's two tables": ("onnxruntime-genai", flagged(WHISPER, True), SPEECH, "untied"),
    "CTranslate2 takes what transformers loads": ("ctranslate2", TIED, OWN, "untied"),
    "and its random numbers": ("ctranslate2", UNTIED, llama(), "random"),
    "CTranslate2 needs a config": ("ctranslate2", None, OWN, "error"),
    "CTranslate2 does not know a type": ("ctranslate2", flagged(STABLELM, False), OWN, "error"),
    "CTranslate2 reads a setting that transformers 5 lacks": ("ctranslate2", flagged(PHI, False), OWN, "error"),
    "CTranslate2 needs a key of the config": ("ctranslate2", flagged(BART, True), SHARED, "error"),
    "and converts with it": ("ctranslate2", {**flagged(BART, True), "normalize_before": False}, SHARED, "tied"),
    "CTranslate2 converts a class without its head": ("ctranslate2", BERT, llama(), "unknown"),
    "safetensors needs a model object, no config": ("safetensors", None, OWN, "unknown"),
    "accelerate ties by the head alone": ("accelerate", TIED, HEAD_ONLY, "tied"),
    "accelerate keeps the first name": ("accelerate", TIED, OWN, "discarded"),
    "accelerate ties an equal copy": ("accelerate", TIED, BOTH, "tied"),
    "accelerate keeps two": ("accelerate", UNTIED, OWN, "untied"),
    "accelerate moves no parameter without values": ("accelerate", UNTIED, llama(), "error"),
    "accelerate needs a bias of the class": ("accelerate", flagged(PHI, True), llama(), "error"),
    "accelerate loads a bias of the class": ("accelerate", flagged(PHI, True), BIASED, "tied"),
    "accelerate drops an unknown bias": ("accelerate", TIED, BIASED, "tied, dropped lm_head.bias"),
    "accelerate renames no expert": ("accelerate", flagged(MIXTRAL, True), llama(), "error"),
    "accelerate ties without a renamed head": ("accelerate", flagged(NEOX, True), EMBED_IN, "tied"),
    "accelerate does not read a renamed head": ("accelerate", flagged(NEOX, True), EMBED_BOTH, "discarded"),
    "which it needs in an untied model": ("accelerate", flagged(NEOX, False), EMBED_BOTH, "error"),
    "accelerate needs the prefix": ("accelerate", flagged(GPT2, True), {"wte.weight": matrix()}, "error"),
}


@pytest.mark.parametrize(
    ("spec", "config", "message"),
    [
        ("ctranslate2", flagged(PHI, False), "CTranslate2 4.8 reads n_layer of PhiForCausalLM, which"),
        ("ctranslate2", flagged(NEOX, False), "CTranslate2 4.8 reads rotary_pct of GPTNeoXForCausalLM, which"),
        ("onnxruntime-genai", GEMMA3, "onnxruntime-genai 0.18 reads rope_type of Gemma3ForCausalLM, which"),
    ],
)
def test_a_refusal_names_the_setting_and_its_loader_once(
    spec: str, config: dict[str, object], message: str, tmp_path: Path
) -> None:
    """The finding does not repeat the loader before a sentence that starts with it."""
    result = api.inspect(save(tmp_path / "model", config, OWN), consumers=spec)
    assert [finding.message[: len(message)] for finding in result.findings if finding.rule == "CON003"] == [message]


def test_outcome(tmp_path: Path) -> None:
    """One outcome, and a sentence that names the tensors."""
    for case in CASES:
        with in_case(case):
            folder = fresh(tmp_path)
            spec, config, tensors, expected = CASES[case]
            (found,) = api.inspect(save(folder / "model", config, tensors), consumers=spec).consumers
            dropped = f", dropped {' '.join(found.dropped)}" if found.dropped else ""
            assert f"{found.outcome}{dropped}" == expected
            assert found.detail and "\n" not in found.detail and not found.detail.endswith(".")
            assert found.outcome == "unknown" or all(name in found.detail for name in found.tensors[:1])


@pytest.mark.parametrize(
    "spec", ["transformers==4.48", "transformers==4.57", "transformers>=5.4", "vllm==0.28", "vllm==0.29", "llama.cpp",
             "mlx-lm==0.32", "onnxruntime-genai", "safetensors"],
)  # fmt: skip
@pytest.mark.parametrize("stored", [llama(), HEAD_ONLY])
def test_rows_that_the_config_does_not_declare(spec: str, stored: Tensors, tmp_path: Path) -> None:
    """A loader makes tables of vocab_size rows: a stored table of other rows cannot be copied."""
    config = {**TIED, "vocab_size": 12}
    (found,) = api.inspect(save(tmp_path / "model", config, stored), consumers=spec).consumers
    skips = spec == "vllm==0.28" and stored is HEAD_ONLY  # vLLM 0.28 does not read the head of a tied model
    assert found.outcome == ("random" if skips else "error")
    if stored is not HEAD_ONLY:
        assert found.detail.startswith("model.embed_tokens.weight has 8 rows, and ") and "12" in found.detail


def test_a_format_that_a_loader_does_not_read(tmp_path: Path) -> None:
    """mlx-lm globs for safetensors files; transformers and vLLM read torch files too."""
    folder = tmp_path / "model"
    save(folder, TIED, llama())
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": torch.from_numpy(matrix())}, folder / "pytorch_model.bin")
    found = api.inspect(folder, consumers="mlx-lm,transformers>=5.4,vllm>=0.29,safetensors").consumers
    outcomes = {prediction.name: str(prediction.outcome) for prediction in found}
    assert outcomes == {"mlx-lm": "error", "transformers": "tied", "vllm": "tied", "safetensors": "error"}


def test_vllm_looks_into_safetensors_alone(tmp_path: Path) -> None:
    """From 0.29 on a differing head in a torch file is still left out."""
    folder = tmp_path / "model"
    save(folder, TIED, llama())
    (folder / "model.safetensors").unlink()
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in OWN.items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    (found,) = api.inspect(folder, consumers="vllm>=0.29").consumers
    assert str(found.outcome) == "discarded"


@pytest.mark.parametrize("spec", ["transformers", "vllm", "mlx-lm", "text-generation-inference"])
def test_what_was_not_compared_is_not_claimed(spec: str, tmp_path: Path) -> None:
    """With headers alone nobody can say whether a stored head of a tied model differs."""
    found = api.inspect(save(tmp_path / "model", TIED, OWN), depth="header", consumers=spec).consumers
    outcomes = {prediction.version: str(prediction.outcome) for prediction in found}
    if spec == "transformers":
        assert outcomes.pop("5.0") == "untied"  # it compares nothing, and never ties two stored tensors
    assert set(outcomes.values()) == {"unknown"}


def test_transformers_50_ties_no_two_stored_tensors(tmp_path: Path) -> None:
    """Equal copies are two parameters, a null flag does not tie, and one table is both."""
    for name, config, tensors, expected in (
        ("equal", TIED, BOTH, "untied"),
        ("null", {**LLAMA, "tie_word_embeddings": None}, BOTH, "untied"),
        ("one", TIED, llama(), "tied"),
        ("head", TIED, HEAD_ONLY, "tied"),
        ("default", MAMBA, MAMBA_TABLE, "random"),
    ):
        (early,) = api.inspect(save(tmp_path / name, config, tensors), consumers="transformers==5.0").consumers
        assert str(early.outcome) == expected, name


def test_accelerate_reads_a_torch_file_first(tmp_path: Path) -> None:
    """tieconv reads the safetensors file beside it, and makes no claim about the other."""
    folder = save(tmp_path / "model", UNTIED, OWN)
    torch.save({"model.embed_tokens.weight": torch.from_numpy(matrix())}, folder / "pytorch_model.bin")
    (found,) = api.inspect(folder, consumers="accelerate").consumers
    assert (str(found.outcome), "pytorch_model.bin" in found.detail) == ("unknown", True)


def test_accelerate_looks_for_three_names(tmp_path: Path) -> None:
    """Weights under another name are not opened."""
    folder = save(tmp_path / "model", UNTIED, OWN)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (found,) = api.inspect(folder, consumers="accelerate").consumers
    assert str(found.outcome) == "error" and "finds no weights" in found.detail


def test_a_release_without_the_class_is_an_error(tmp_path: Path) -> None:
    """Code beside the model may bring the class, and tieconv does not run that code."""
    for more, outcome in ({}, "error"), ({"auto_map": {"AutoModelForCausalLM": "code.Model"}}, "unknown"):
        folder = save(tmp_path / outcome, {**flagged(GEMMA3, True), **more}, llama())
        (found,) = api.inspect(folder, consumers="transformers==4.48").consumers
        assert str(found.outcome) == outcome and "has no model of type gemma3_text" in found.detail


def test_a_rounded_head_of_a_composite_in_448(tmp_path: Path) -> None:
    """LLaVA in 4.48 keeps the head's rounded values, because the file lacks its first tensor. No other release does."""
    text = {**LLAMA, "architectures": ["LlamaForCausalLM"]}
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": flagged(text, True),
        "tie_word_embeddings": True,
    }
    folder = tmp_path / "model"
    save(folder, config, {"language_model.model.embed_tokens.weight": matrix()})
    table = torch.from_numpy(matrix()) + 1e-4
    names = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
    tensors = {names[0]: table, names[1]: table.bfloat16()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    outcomes = {
        found.version: str(found.outcome) for found in api.inspect(folder, consumers="transformers<5").consumers
    }
    assert outcomes == {"4.48": "discarded", "4.57": "tied"}


EMBED, HEAD = "tok_embeddings.weight", "output.weight"


def native(folder: Path, name: str = "consolidated.safetensors", *, tied: bool = False) -> Path:
    """A file of that format and its `params.json`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(weights({EMBED: matrix(seed=3), **({} if tied else {HEAD: matrix(seed=4)})}))
    (path.parent / "params.json").write_text(json.dumps({"dim": 4, "vocab_size": 8, "tied_embeddings": tied}))
    return folder


@pytest.mark.parametrize(
    "name",
    ["consolidated.safetensors", "consolidated-00001-of-00001.safetensors", "original/consolidated.00.safetensors"],
)
def test_beside_the_files_of_transformers(name: str, tmp_path: Path) -> None:
    """vLLM takes those of Mistral's format, in whatever folder: nothing is claimed but which files it reads."""
    folder = native(save(tmp_path, flagged(LLAMA, True), llama()), name)
    predictions = {entry.name: entry for entry in api.inspect(folder, consumers="transformers>=5.4,vllm").consumers}
    assert predictions["transformers"].outcome == "tied"
    assert predictions["vllm"].outcome == "unknown"
    assert name in predictions["vllm"].detail and "model.safetensors" in predictions["vllm"].detail


@pytest.mark.parametrize(
    "name", ["consolidated.safetensors.bak", "unconsolidated.safetensors.txt", "consolidated.00.pth"]
)
def test_names_that_are_like_it(name: str, tmp_path: Path) -> None:
    """vLLM looks for `consolidated*.safetensors` by base name, and for nothing else."""
    folder = save(tmp_path, flagged(LLAMA, True), llama())
    (folder / name).touch()
    assert {str(entry.outcome) for entry in api.inspect(folder, consumers="vllm").consumers} == {"tied"}


@pytest.mark.parametrize("tied", [False, True])
def test_alone(tied: bool, tmp_path: Path) -> None:
    """What it is, which two names to give, and no word of a missing config, which vLLM does not need there."""
    inspection = api.inspect(native(tmp_path, tied=tied), consumers="vllm")
    assert {str(entry.outcome) for entry in inspection.consumers} == {"unknown"}
    (found,) = [entry for entry in inspection.findings if entry.rule == "TIE012"]
    assert found.message.startswith("consolidated.safetensors is in Mistral's own format.")
    assert found.message.endswith(f"--embed {EMBED} --head {HEAD}.")
    assert inspection.head.input_embedding and inspection.head.input_embedding.name == EMBED
    named = api.inspect(tmp_path, embed=EMBED, head=HEAD)
    assert named.head.output_head and named.head.output_head.stored is not tied
