"""Tiny models with sharp logits, those that `export` is measured on, and their graphs, each built once."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.lazy import torch, transformers as tr
from tieconv.reference.model import cache_in

# Asking a class would import its module in each collection of the tests.
CACHE = "cache" if tuple(map(int, version("transformers").split(".")[:2])) >= (5, 24) else "past_key_values"
ROWS, WIDTH = 1021, 32  # so many rows that a good part of them is never fed
STD = 0.15  # the usual 0.02 makes logits so flat that faults hide in them

_SIZES = {
    "vocab_size": ROWS, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "tie_word_embeddings": True, "initializer_range": STD, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ENCODER = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
_GPT2: dict[str, Any] = {
    "vocab_size": ROWS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": STD,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_OPT: dict[str, Any] = {
    "vocab_size": ROWS, "hidden_size": WIDTH, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "word_embed_proj_dim": WIDTH, "init_std": STD,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": ROWS, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "initializer_factor": 0.5, "decoder_start_token_id": 0,
}  # fmt: skip
_BART: dict[str, Any] = {
    "vocab_size": ROWS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128,
    "init_std": STD, "decoder_start_token_id": 2,
}  # fmt: skip

MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: tr.LlamaForCausalLM(tr.LlamaConfig(**_SIZES)),
    "llama-untied": lambda: tr.LlamaForCausalLM(tr.LlamaConfig(**_SIZES | {"tie_word_embeddings": False})),
    "mistral": lambda: tr.MistralForCausalLM(tr.MistralConfig(**_SIZES, sliding_window=16)),
    "qwen2": lambda: tr.Qwen2ForCausalLM(tr.Qwen2Config(**_SIZES)),
    "qwen3": lambda: tr.Qwen3ForCausalLM(tr.Qwen3Config(**_SIZES, head_dim=8)),
    "gemma": lambda: tr.GemmaForCausalLM(tr.GemmaConfig(**_SIZES, head_dim=8)),
    "gemma2": lambda: tr.Gemma2ForCausalLM(
        tr.Gemma2Config(**_SIZES, head_dim=8, sliding_window=8, query_pre_attn_scalar=8)
    ),
    "gpt2": lambda: tr.GPT2LMHeadModel(tr.GPT2Config(**_GPT2)),
    "opt": lambda: tr.OPTForCausalLM(tr.OPTConfig(**_OPT)),
    "bert": lambda: tr.BertForMaskedLM(tr.BertConfig(**_ENCODER)),
    "t5": lambda: tr.T5ForConditionalGeneration(tr.T5Config(**_T5)),
}


@dataclass(frozen=True)
class Exported:
    """A model directory and the graph of it."""

    model: Path
    graph: Path


def build(name: str, dtype: str, directory: Path) -> Exported:
    """The model and its graph in ``dtype`` under ``directory``, each written where another process has not done so.

    The model is written once for all of its graphs: a test of another process may be reading it.
    """
    made = Exported(directory / name / "model", directory / name / dtype / "model.onnx")
    with _once(directory, name) as missing:
        if missing:
            make(name).save_pretrained(made.model)
    with _once(directory, f"{name}-{dtype}") as missing:
        if missing:
            # Not model.half(): that would round the rotary frequencies too, which every loader keeps in float32.
            loaded = type(make(name)).from_pretrained(made.model, dtype=getattr(torch, dtype)).eval()
            export(loaded, made.graph.parent)
    return made


@contextlib.contextmanager
def _once(directory: Path, label: str) -> Iterator[bool]:
    """Whether the block must do the work of ``label``: no process has done it, and none begins before this one ends."""
    directory.mkdir(parents=True, exist_ok=True)
    done = directory / f"{label}.done"
    with (directory / f"{label}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not done.exists()
        yield missing
        done.touch()


def make(name: str) -> Any:
    """The model with every parameter random, norms around 1 and biases around 0, so that none is equal to another."""
    from tests.onnx.planted.edit import MORE

    torch.manual_seed(0)
    model = (MODELS | ARCHITECTURES | MORE)[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=STD)
    model.generation_config = tr.GenerationConfig()
    return model


def export(model: Any, directory: Path) -> None:
    """`model.onnx` and its data in ``directory``."""
    from transformers.exporters import OnnxConfig, OnnxExporter

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    directory.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        made = OnnxExporter().export(model, _inputs(model), OnnxConfig(dynamic=True))
        # Before transformers had a class of its own for it, what it gave was torch's ONNXProgram.
        save = getattr(made, "save_pretrained", None)
        save(directory) if save else made.save(str(directory / "model.onnx"), external_data=True)
    assert (directory / "model.onnx").exists()


def _inputs(model: Any) -> dict[str, Any]:
    """Sample inputs whose sides all differ and none is 1, since a side of 1 would be frozen into the graph."""
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, 0] = 0
    ids = torch.randint(0, ROWS, (2, 5))
    if model.config.is_encoder_decoder:
        return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :3], "use_cache": False}
    if type(model).__name__.endswith("MaskedLM"):
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    past = torch.ones(2, 7, dtype=torch.long)
    past[0, :2] = 0
    cache = tr.DynamicCache(config=model.config)
    filled = model(input_ids=torch.randint(0, ROWS, (2, 7)), attention_mask=past, use_cache=True, **{CACHE: cache})
    mask = torch.cat([past, torch.ones(2, 3, dtype=torch.long)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -3:]
    return {"input_ids": ids[:, :3], "attention_mask": mask, "position_ids": positions,
            CACHE: cache_in(filled), "use_cache": True}  # fmt: skip


def cache_directory(base: Path) -> Path:
    """Where all workers of one run keep their graphs."""
    return base.parent / "exported" if os.environ.get("PYTEST_XDIST_WORKER") else base / "exported"


def config(model: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((model / "config.json").read_text())
    return loaded


_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    **MODELS,
    "phi": lambda: tr.PhiForCausalLM(tr.PhiConfig(**_SIZES)),
    "granite": lambda: tr.GraniteForCausalLM(
        tr.GraniteConfig(
            **_SIZES, logits_scaling=8.0, embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22
        )
    ),
    "cohere": lambda: tr.CohereForCausalLM(tr.CohereConfig(**_SIZES, logit_scale=0.0625)),
    "mixtral": lambda: tr.MixtralForCausalLM(
        tr.MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    ),
    "qwen2-moe": lambda: tr.Qwen2MoeForCausalLM(
        tr.Qwen2MoeConfig(**_SIZES, **_MOE, shared_expert_intermediate_size=24)
    ),
    "roberta": lambda: tr.RobertaForMaskedLM(tr.RobertaConfig(**_ENCODER | {"type_vocab_size": 1})),
    "bart": lambda: tr.BartForConditionalGeneration(tr.BartConfig(**_BART, scale_embedding=True)),
}
