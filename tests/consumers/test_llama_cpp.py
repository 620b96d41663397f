"""llama.cpp: what its converter writes, and what its loader refuses, in the cases that the program itself showed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv as api
from fixtures import llama_cpp_source
from fixtures.gguf_bytes import ARCHITECTURE, F32, accepted, gguf
from tests.checks.fixtures.model import Config, Tensors, flagged, llama, matrix, save, save_shards, vector, with_row
from tests.lazy import torch
from tests.loops import case as in_case, fresh
from tieconv.loaders import release_tables

OWN = llama(head=with_row(matrix()))
COPY = llama(head=matrix())
ROWS = llama(head=matrix(12, seed=3))
BIAS = {**OWN, "lm_head.bias": vector(seed=4)}
ZERO = {**OWN, "lm_head.bias": np.zeros_like(vector())}
T5: Tensors = {f"{half}.embed_tokens.weight": matrix() for half in ("decoder", "encoder")}


def config(kind: str, model_type: str, **more: Any) -> Config:
    """A config without a tie flag."""
    return {"architectures": [kind], "model_type": model_type, "vocab_size": 8, **more}


def prefixed(tensors: Tensors) -> Tensors:
    """Llama's tensors with the names of a state space model."""
    return {name.replace("model.embed_tokens", "backbone.embeddings"): tensor for name, tensor in tensors.items()}


LLAMA, MAMBA = config("LlamaForCausalLM", "llama"), config("MambaForCausalLM", "mamba")
DEEPSEEK = config("DeepseekV3ForCausalLM", "deepseek_v3")
HUNYUAN = config("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense")
QWEN2, QWEN2_VL = config("Qwen2ForCausalLM", "qwen2"), config("Qwen2VLForConditionalGeneration", "qwen2_vl")
NEXT = config("Qwen3NextForCausalLM", "qwen3_next")

CASES: dict[str, tuple[Config, Tensors, str]] = {
    "a head with other rows": (flagged(LLAMA, True), ROWS, "error"),
    "a head with other rows in a class that drops it": (config("GemmaForCausalLM", "gemma"), ROWS, "discarded"),
    "a head with other rows that the flag drops": (flagged(DEEPSEEK, True), ROWS, "discarded"),
    "an equal head of Mamba": (flagged(MAMBA, False), prefixed(COPY), "tied"),
    "another head of Mamba": (flagged(MAMBA, True), prefixed(OWN), "untied"),
    "a vocabulary that Mamba rounds up": ({**MAMBA, "vocab_size": 7}, prefixed(llama()), "tied"),
    "a vocabulary that Mamba rounds up to other rows": ({**MAMBA, "vocab_size": 9}, prefixed(llama()), "error"),
    "a larger multiple of Mamba 2": (config("Mamba2ForCausalLM", "mamba2"), prefixed(llama()), "error"),
    "the flag drops a head": (flagged(DEEPSEEK, True), OWN, "discarded"),
    "the flag is false": (flagged(DEEPSEEK, False), OWN, "untied"),
    "the flag is absent and the class has false": (DEEPSEEK, OWN, "untied"),
    "the flag is null": ({**DEEPSEEK, "tie_word_embeddings": None}, OWN, "untied"),
    "a class that transformers 4 lacks": (flagged(config("YoutuForCausalLM", "youtu"), True), OWN, "discarded"),
    "the same class without a flag": (config("YoutuForCausalLM", "youtu"), OWN, "untied"),
    "HunYuan, tied": (flagged(HUNYUAN, True), OWN, "discarded"),
    "SeedOss": (config("SeedOssForCausalLM", "seed_oss"), llama(), "tied"),
    "Ernie 4.5": (config("Ernie4_5ForCausalLM", "ernie4_5"), OWN, "untied"),
    "Falcon H1": (config("FalconH1ForCausalLM", "falcon_h1", head_dim=4), OWN, "untied"),
    "a class that the converter lacks": (config("HeliumForCausalLM", "helium"), llama(), "error"),
    "a class with another spelling": (config("MptForCausalLM", "mpt"), {"transformer.wte.weight": matrix()}, "error"),
    "a head without a GGUF tensor": (config("Cohere2ForCausalLM", "cohere2"), COPY, "error"),
    "a bias that is added": (QWEN2, BIAS, "untied"),
    "a bias that is loaded and not added": (QWEN2_VL, BIAS, "untied, dropped lm_head.bias"),
    "a zero bias that is not added": (QWEN2_VL, ZERO, "untied"),
    "a bias that the architecture needs": (config("PhiForCausalLM", "phi"), OWN, "error"),
    "that bias, stored": (config("PhiForCausalLM", "phi"), BIAS, "untied"),
    "a class without its MTP layers": (NEXT, OWN, "error"),
    "the same class with them": (NEXT, {**OWN, "mtp.norm.weight": vector()}, "untied"),
    "a class whose small model does not load": (config("MellumForCausalLM", "mellum"), OWN, "unknown"),
    "names without the prefix": (LLAMA, {"embed_tokens.weight": matrix(), "norm.weight": vector()}, "tied"),
    "names without a prefix that the converter needs": (
        MAMBA,
        {"embeddings.weight": matrix(), "norm_f.weight": vector()},
        "error",
    ),
    "T5 without its shared table": (config("T5ForConditionalGeneration", "t5", decoder_start_token_id=0), T5, "tied"),
    "T5, whose first table wins": (
        config("T5ForConditionalGeneration", "t5", decoder_start_token_id=0),
        {**T5, "shared.weight": matrix(seed=7)},
        "discarded",
    ),
}


FALCON: Config = config("FalconForCausalLM", "falcon", num_attention_heads=4, tie_word_embeddings=True)
WORDS: Tensors = {"transformer.word_embeddings.weight": matrix()}
GRANITE: Config = config("GraniteMoeHybridForCausalLM", "granitemoehybrid")
CONFIGS: dict[str, tuple[Config, Config, Tensors, str]] = {
    "n_ctx": (config("GPT2LMHeadModel", "gpt2"), {"n_ctx": 8}, {"wte.weight": matrix()}, "needs n_ctx in the config"),
    "rotary_pct": (config("Cohere2ForCausalLM", "cohere2"), {"rotary_pct": 1.0}, llama(), "needs rotary_pct"),
    "scoring_func": (config("Dots1ForCausalLM", "dots1"), {"scoring_func": "sigmoid"}, OWN, "needs scoring_func"),
    "head_dim": (config("FalconH1ForCausalLM", "falcon_h1"), {"head_dim": 4}, OWN, "needs head_dim"),
    "a null": (
        config("T5ForConditionalGeneration", "t5", decoder_start_token_id=None),
        {"decoder_start_token_id": 0},
        T5,
        "needs decoder_start_token_id",
    ),
    "layers of Granite": (
        {**GRANITE, "layer_types": ["linear_attention", "full_attention"]},
        {"layer_types": ["mamba", "attention"]},
        llama(),
        "does not know the layer type full_attention",
    ),
    "heads of the default": (FALCON, {"num_kv_heads": 1}, WORDS, "uses num_kv_heads 4 of the config"),
    "heads that are written": ({**FALCON, "num_kv_heads": 4}, {"multi_query": False}, WORDS, "num_kv_heads 4"),
    "heads in a new decoder": (FALCON, {"new_decoder_architecture": True, "num_kv_heads": 2}, WORDS, "num_kv_heads 4"),
}
"""A config as transformers 5 may write it, the keys that it then needs, and why llama.cpp fails without them."""


@pytest.mark.parametrize("case", CONFIGS)
def test_keys_that_transformers_5_does_not_write(case: str, tmp_path: Path) -> None:
    """Each was run, as llama-cpp-python 0.3.36 has it: the config fails, and with the keys the model loads."""
    written, keys, tensors, reason = CONFIGS[case]
    (row,) = api.inspect(save(tmp_path / "without", written, tensors), consumers="llama.cpp").consumers
    assert row.outcome == "error" and reason in row.detail, row
    assert predicted(save(tmp_path / "with", {**written, **keys}, tensors)) in ("tied", "untied")


def predicted(folder: Path) -> str:
    """Return the outcome, and the biases that it drops."""
    (prediction,) = api.inspect(folder, consumers="llama.cpp").consumers
    dropped = f", dropped {' '.join(prediction.dropped)}" if prediction.dropped else ""
    assert prediction.detail and not prediction.detail.endswith(".")
    return f"{prediction.outcome}{dropped}"


def test_outcome(tmp_path: Path) -> None:
    """One checkpoint with one weight file."""
    for case in CASES:
        with in_case(case):
            folder = fresh(tmp_path)
            settings, tensors, expected = CASES[case]
            assert predicted(save(folder / "model", settings, tensors)) == expected


def test_the_class_of_the_text_config_decides(tmp_path: Path) -> None:
    """The converter looks into text_config first, except for a few classes."""
    names = {"language_model.model.embed_tokens.weight": matrix(), "language_model.lm_head.weight": matrix(seed=1)}
    outer = config("LlavaForConditionalGeneration", "llava", text_config={"model_type": "llama"})
    assert predicted(save(tmp_path / "outer", outer, names)) == "untied"
    inner = {**outer, "text_config": {"model_type": "helium", "architectures": ["HeliumForCausalLM"]}}
    assert predicted(save(tmp_path / "inner", inner, names)) == "error"


def test_a_head_in_a_shard_of_its_own(tmp_path: Path) -> None:
    """Shards that the index names are read; a file that it does not name is not."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    embedding, head = llama(), {"lm_head.weight": OWN["lm_head.weight"]}
    weight_map = dict.fromkeys(embedding, first) | dict.fromkeys(head, second)
    sharded = save_shards(tmp_path / "sharded", flagged(LLAMA, True), {first: embedding, second: head}, weight_map)
    assert predicted(sharded) == "untied"
    stray = {"model-00001-of-00001.safetensors": embedding, "extra.safetensors": head}
    weight_map = dict.fromkeys(embedding, "model-00001-of-00001.safetensors")
    assert predicted(save_shards(tmp_path / "stray", flagged(LLAMA, True), stray, weight_map)) == "tied"


def test_two_formats_side_by_side(tmp_path: Path) -> None:
    """The converter reads the safetensors files, whatever the torch file holds; and a torch file alone."""
    both = save(tmp_path / "both", flagged(LLAMA, True), OWN)
    torch.save({"model.embed_tokens.weight": torch.zeros(8, 4)}, both / "pytorch_model.bin")
    assert predicted(both) == "untied"
    (both / "model.safetensors").unlink()
    assert predicted(both) == "tied"


def test_the_tables_cover_the_registry() -> None:
    """Each class that the converter lists has one kind, and most classes of transformers are not only registered."""
    tables = release_tables._tables("llama.cpp")
    lists = [name for entry in tables.values() if isinstance(entry, list) for name in entry]
    assert len(lists) == len(set(lists)) > 250
    assert len(tables["registered"]) < 150


LAYER = ("attn_norm.weight", "attn_output.weight", "ffn_down.weight", "ffn_up.weight")
BLOCKS = [f"blk.{number}.{leaf}" for number in range(3) for leaf in LAYER]
EMBED, OUTPUT = "token_embd.weight", "output.weight"
GGUF_FAULTS = {
    "whole": ("llama", [EMBED, *BLOCKS], {}, "tied", ""),
    "no embedding": (
        "llama",
        [OUTPUT, *BLOCKS],
        {},
        "error",
        "TIE006 token_embd.weight is missing, and llama.cpp needs",
    ),
    "an adapter": ("llama", [f"{name}.lora_a" for name in BLOCKS], {}, "unknown", ""),
    "a projector": ("clip", ["v.blk.0.attn_q.weight"], {}, "unknown", ""),
    "another kind of file": ("llama", BLOCKS, {"general.type": "imatrix"}, "unknown", ""),
    "an unknown architecture": ("nobody", [OUTPUT, *BLOCKS], {}, "unknown", ""),
    "a layer": (
        "qwen3next",
        [EMBED, *BLOCKS[:8]],
        {},
        "error",
        "STO006 blk.2 is not stored, but the metadata says 3 layers",
    ),
    "a matrix": (
        "llama",
        [EMBED, *BLOCKS[:-1]],
        {},
        "error",
        "STO006 blk.2.ffn_up.weight is not stored, but the other 2",
    ),
    "a matrix of a class whose layers differ": ("qwen3next", [EMBED, *BLOCKS[:-1]], {}, "tied", ""),
    "one more": (
        "bloom",
        [EMBED, *BLOCKS, "blk.3.ffn_up.weight"],
        {},
        "error",
        "STO007 blk.3 is stored, but the metadata",
    ),
    "a layer of an unknown architecture": ("nobody", [EMBED, *BLOCKS[:8]], {}, "unknown", ""),
    "a layer that may be empty": ("deci", [EMBED, *BLOCKS[:8]], {}, "tied", ""),
    "layers that run in cycles": ("hrm_text", [EMBED, *BLOCKS], {"hrm_text.block_count": 12}, "tied", ""),
    "several tokens": ("llama", [EMBED, *BLOCKS[:8]], {"llama.nextn_predict_layers": 1}, "tied", ""),
    "a decoder": (
        "t5",
        [EMBED, *(f"{part}.{name}" for part in ("enc", "dec") for name in BLOCKS[: 12 if part == "enc" else 8])],
        {"t5.decoder_block_count": 3},
        "error",
        "STO006 dec.blk.2 is not stored, but the metadata says 3 layers (t5.decoder_block_count).",
    ),
    "no layers": ("llama", [EMBED, *BLOCKS], {"llama.block_count": 0}, "error", ""),
    "too many layers": ("llama", [EMBED, *BLOCKS], {"llama.block_count": 20_000}, "error", ""),
    "no bias": ("phi2", [EMBED, OUTPUT, *BLOCKS], {}, "error", ""),
    "a bias": ("llama", [EMBED, *BLOCKS, "output.bias"], {}, "error", ""),
}


@pytest.mark.parametrize("name", GGUF_FAULTS)
def test_what_a_gguf_file_lacks(name: str, tmp_path: Path) -> None:
    """As libllama of 0.3.36 loads such files of 81 classes: `tests.oracles.gguf_faults`."""
    architecture, names, more, outcome, message = GGUF_FAULTS[name]
    metadata, beside = accepted(architecture, 8, 3)
    path = tmp_path / "model.gguf"
    shapes = {name: (8,) if name.endswith(("norm.weight", "bias")) else (8, 8) for name in [*names, *beside]}
    tensors = [(name, shape, F32, np.ones(shape, "<f4").tobytes()) for name, shape in shapes.items()]
    path.write_bytes(gguf(tensors, metadata | more))
    result = api.inspect(path, consumers="llama.cpp")
    assert [row.outcome for row in result.consumers] == [outcome]
    seen = [f"{finding.rule} {finding.message}" for finding in result.findings if finding.rule[:3] != "CON"]
    assert len(seen) == bool(message) and seen[:1] == [text for text in seen if text.startswith(message)]
    errors = [finding for finding in api.inspect(path).findings if finding.level == "error"]
    assert bool(errors) == (outcome == "error")  # nobody has to ask for llama.cpp
    assert "transformers" not in " ".join(seen)
    unread = "tieconv has not read what llama.cpp asks of the architecture nobody"
    none = "the file has neither the embedding nor the layers of a language model"
    assert outcome != "unknown" or result.consumers[0].detail == (unread if architecture == "nobody" else none)
    start = {"error": f"Not loaded: {result.consumers[0].detail}.", "tied": "Tied"}
    assert str(result.config.effect).startswith(start.get(outcome, ("No ", "Un")))


@pytest.mark.parametrize("lost", ["output_norm.weight", "blk.1.ffn_up.weight", "token_embd.weight"])
def test_a_gguf_file_with_a_nan(lost: str, tmp_path: Path) -> None:
    """The default depth reads norms and a few bytes of each table, `full` every tensor that is not quantised."""
    metadata, beside = accepted("llama", 8, 3)
    path, names = tmp_path / "model.gguf", [EMBED, *BLOCKS, *beside]
    values = {name: np.ones((8,) if name.endswith("norm.weight") else (8, 8), "<f4") for name in names}
    values[lost][-1] = np.nan
    tensors = [(name, array.shape, F32, array.tobytes()) for name, array in values.items()]
    path.write_bytes(gguf(tensors, metadata))
    for depth, seen in ("header", False), ("candidates", "ffn" not in lost), ("full", True):
        found = [each.tensors for each in api.inspect(path, depth=depth).findings if each.rule == "NUM001"]
        assert found == [(lost,)] * seen, depth


MODEL, TOKENS = "tokenizer.ggml.model", "tokenizer.ggml.tokens"
HIDDEN, EPSILON = "llama.embedding_length", "llama.attention.layer_norm_rms_epsilon"
ARRAY = struct.pack("<IQ3I", 4, 3, 3, 3, 3)
CONTRADICTIONS: dict[str, tuple[str, list[str], dict[str, object], str]] = {
    "digits that are no number": (
        "llama",
        (),
        {"llama.embedding_length": "²"},
        "of the type u32, and the file has str",
    ),
    "a head count": ("llama", [], {"llama.attention.head_count": 3}, "asks for 6 (attention.head_count *"),
    "a head count for each layer": ("llama", [], {"llama.attention.head_count": b"\t\0\0\0" + ARRAY}, ""),
    "a width": ("llama", [], {HIDDEN: 16}, "token_embd.weight has the shape [8, 8], and the metadata asks for 16 (emb"),
    "an inner width": ("llama", [], {"llama.feed_forward_length": 9}, "ffn_down.weight has the shape"),
    "more tokens": ("llama", [], {"llama.vocab_size": 9}, "the metadata asks for 9 (tokens)"),
    "no tokens": ("llama", [], {"llama.vocab_size": None}, "the metadata asks for 0 (tokens)"),
    "a list of tokens": ("llama", [], {MODEL: "llama", TOKENS: ["a"] * 8, "llama.vocab_size": 9}, ""),
    "a longer list of tokens": ("llama", [], {MODEL: "llama", TOKENS: ["a"] * 9}, "the metadata asks for 9 (tokens)"),
    "no list of tokens": ("llama", [], {MODEL: "llama"}, f"llama.cpp needs {TOKENS} in the metadata"),
    "no tokenizer": ("llama", [], {MODEL: None}, f"llama.cpp needs {MODEL} and {TOKENS} in the metadata"),
    "no context": ("llama", [], {"llama.context_length": None}, "llama.cpp needs llama.context_length in the metadata"),
    "no epsilon": ("llama", [], {EPSILON: None}, f"llama.cpp needs {EPSILON} in the metadata"),
    "no number of layers": ("llama", [], {"llama.block_count": None}, "llama.cpp needs llama.block_count in the"),
    "layers in words": (
        "llama",
        [],
        {"llama.block_count": "3"},
        "llama.block_count of the type u32, and the file has str",
    ),
    "layers in 16 bits": ("llama", [], {"llama.block_count": b"\2\0\0\0\3\0"}, "the type u32, and the file has u16"),
    "no last norm": (
        "llama",
        ["output_norm.weight"],
        {},
        "llama.cpp needs output_norm.weight of the architecture llama",
    ),
    "another architecture": (ARCHITECTURE, [], {}, ""),
}
"""The architecture, tensors without one, keys with other values, and why libllama of 0.3.36 does not load the file."""


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_metadata_that_contradicts_the_tensors(name: str, tmp_path: Path) -> None:
    """`tests.oracles.gguf_faults` loads such files of each class. `check` fails without `--for`, and offers nothing."""
    architecture, dropped, more, reason = CONTRADICTIONS[name]
    metadata, beside = accepted(architecture, 8, 3)
    shapes = {name: (8,) if "norm" in name else (8, 8) for name in [EMBED, OUTPUT, *BLOCKS, *beside]}
    tensors = [(name, shape, F32, np.ones(shape, "<f4").tobytes()) for name, shape in shapes.items()]
    path = tmp_path / "model.gguf"
    kept = {key: value for key, value in (metadata | more).items() if value is not None}
    path.write_bytes(gguf([tensor for tensor in tensors if tensor[0] not in dropped], kept))
    result = api.inspect(path, consumers="llama.cpp")
    assert [row.outcome for row in result.consumers] == ["error" if reason else "untied"]
    errors = [finding for finding in api.inspect(path).findings if finding.level == "error"]
    assert [finding.rule for finding in errors] == ["CON003"] * bool(reason)
    assert all(reason in finding.message and "convert it to GGUF again" in finding.message for finding in errors)
    assert not errors or all(finding.remedy is None for finding in api.inspect(path).findings)
    assert str(result.config.effect).startswith("Not loaded" if reason else "Untied")


@pytest.mark.parametrize("name", ["my.tensor", "blk.0.my.weight", "blk.0.attn_q.weight.my"])
def test_a_tensor_that_llama_cpp_does_not_know(name: str, tmp_path: Path) -> None:
    """libllama counts the tensors that it uses."""
    metadata, beside = accepted("llama", 8, 1)
    tensors = [(name, (8,), F32, bytes(32)) for name in [*beside, name]]
    (tmp_path / "model.gguf").write_bytes(
        gguf([(EMBED, (8, 8), F32, np.ones(64, "<f4").tobytes()), *tensors], metadata)
    )
    (finding,) = api.inspect(tmp_path / "model.gguf").findings
    assert finding.message.startswith(f"llama.cpp does not use {name}, and refuses unused tensors")


@pytest.mark.parametrize(("alignment", "padding", "refused"), [(8, 1, True), (8, 17, False), (64, 1, False)])
def test_tensors_that_start_at_another_multiple(alignment: int, padding: int, refused: bool, tmp_path: Path) -> None:
    """libllama's memory starts at multiples of 32 bytes. These files lack the layer, so it loads none of them."""
    metadata, beside = accepted("llama", 8, 1)
    tensors = [(EMBED, (8, 8), F32, np.ones(64, "<f4").tobytes()), *((name, (8,), F32, bytes(32)) for name in beside)]
    written = {**metadata, "general.alignment": alignment, "padding": "x" * padding}
    (tmp_path / "model.gguf").write_bytes(gguf(tensors, written, alignment=alignment))
    result = api.inspect(tmp_path / "model.gguf")
    assert (result.checkpoint.files[0].data_start % 32 != 0) is refused
    assert ["multiple of 32 bytes" in finding.message for finding in result.findings] == [True] * refused


@pytest.mark.parametrize(("architecture", "reported"), [("phi2", True), ("llama", False), ("nobody", False)])
def test_a_gguf_file_without_the_output_that_its_architecture_needs(
    architecture: str, reported: bool, tmp_path: Path
) -> None:
    """No loader has to be asked for: llama.cpp reads these files."""
    path, table = tmp_path / "model.gguf", matrix(8, 32).tobytes()
    for stored in (["token_embd.weight"], ["token_embd.weight", "output.weight"]):
        tensors = [(name, (8, 32), F32, table) for name in stored]
        path.write_bytes(gguf(tensors, {"general.architecture": architecture}))
        messages = [finding.message for finding in api.inspect(path).findings if finding.rule == "TIE003"]
        assert len(messages) == (reported and len(stored) == 1)
        assert all(f"llama.cpp needs it of the architecture {architecture}." in message for message in messages)


def test_the_lists_of_what_ran_are_those_of_the_table() -> None:
    """`fixtures/llama_cpp_source.py` writes both into the table, and no test renews it without llama.cpp's source."""
    classes = release_tables.by_type("llama.cpp", "classes")
    assert classes["not run"] == list(llama_cpp_source.NOT_RUN)
    assert set(release_tables.by_type("llama.cpp", "files")) == set(llama_cpp_source.RUN)
