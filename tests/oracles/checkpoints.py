"""The cells and families of the grid, its checkpoints, and the logits of each pair of tables in transformers."""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fixtures import zoo
from tests.lazy import save_file, torch
from tests.oracles.tokenizer import write_tokenizer
from tieconv.architectures import find
from tieconv.checkpoint.family import Family, Role

FLAG = "tie_word_embeddings"
PROMPT = (1, 5, 9, 7, 3, 4)  # rows 3 and 4 are those that `near` changes
MORE_ROWS = 8
_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "mixed": "float32"}


@dataclass
class Base:
    """A family's model: its config without tie flags, its tensors, its tables and the logits of each pair."""

    family: Family
    config: dict[str, Any]
    others: dict[str, torch.Tensor]
    tables: dict[str, torch.Tensor]
    bias: torch.Tensor
    bias_names: tuple[str, ...]
    reference: Path
    prompt: tuple[int, ...] = PROMPT


def levels(family: Family) -> int:
    """Return how many levels of the config have a flag: the top, and that of the text model."""
    return 1 + bool(family.levels)


def base(kind: str, folder: Path) -> Base:
    """Build the family, and write its reference to ``folder``."""
    family = find({"architectures": [kind]})
    assert family.input_embedding and family.output_head, kind
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = zoo.build(kind, tie=True, **CONFIGS.get(kind, {}))
    saved = folder / f"saved-{kind}"
    model.save_pretrained(saved)
    from safetensors.torch import load_file

    tensors = load_file(saved / "model.safetensors")
    config = _bare(json.loads((saved / "config.json").read_text()))
    names = family.output_biases or (f"{family.output_head.removesuffix('.weight')}.bias",)
    played = {name for group in family.groups for name in (group.canonical, *group.members)}
    played |= {family.input_embedding, family.output_head, *names}
    embedding = tensors.get(family.input_embedding)
    if embedding is None:  # the class keeps the table under another name of the group
        embedding = next(tensors[name] for name in sorted(played & set(tensors)) if tensors[name].ndim == 2)
    tables = variants(embedding)
    plain = torch.from_numpy(_references(model, {"E": embedding}, torch.zeros(len(embedding))).get("E|E|0", np.ones(1)))
    bias = torch.linspace(-1, 1, len(embedding)) * float(plain.abs().mean()) * 2
    made = Base(
        family=family,
        config=config,
        others={name: tensor for name, tensor in tensors.items() if name not in played},
        tables=tables,
        bias=bias,
        bias_names=names,
        reference=folder / f"{kind}.npz",
    )
    arrays = {f"table {name}": table.float().numpy() for name, table in tables.items()}
    arrays["bias"] = bias.numpy()
    every: dict[str, Any] = {**arrays, **_references(model, tables, bias)}
    np.savez(made.reference, **every)
    return made


def variants(embedding: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the embedding and the other heads: two rows differ, all rows differ, and more rows."""
    near = embedding.clone()
    near[3:5] = -5 * embedding[3:5].flip(1)  # no constant, which layer norms take out; large enough to see in logits
    more = torch.cat([embedding.roll(7, 0), embedding[:MORE_ROWS] * 2])
    return {"E": embedding, "near": near, "different": embedding.flip(0).contiguous(), "rows": more}


def _references(model: Any, tables: dict[str, torch.Tensor], bias: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the last logits for each pair of tables; empty where transformers itself does not run the model."""
    model = _two_tables(model)
    inputs, head = model.get_input_embeddings(), model.get_output_embeddings()
    found: dict[str, np.ndarray] = {}
    for first, second in itertools.product(tables, tables):
        if first == "rows":
            continue
        inputs.weight.data = tables[first].clone()
        head.weight.data = tables[second].clone()
        for name, values in (("0", torch.zeros_like(bias)), ("1", bias)):
            if len(tables[second]) != len(bias) and name == "1":
                continue
            head.bias = torch.nn.Parameter(values[: len(tables[second])].clone()) if name == "1" else None
            try:
                found[f"{first}|{second}|{name}"] = _last_logits(model)
            except Exception:  # composites want images, encoders and decoders another prompt
                return {}
    return found


def _two_tables(model: Any) -> Any:
    made = copy.deepcopy(model)
    head = made.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return made


def _last_logits(model: Any) -> np.ndarray:
    tokens = torch.tensor([PROMPT])
    words = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logits = model(input_ids=tokens, **words, use_cache=False).logits
    return np.asarray(logits[0, -1].float().numpy())


def write(cell: Cell, made: Base, folder: Path) -> Path:
    """Write the checkpoint as a directory."""
    folder.mkdir(parents=True)
    config = _flagged({**made.config, "dtype": _NAMES[cell.dtype]}, made.family, cell.flags)
    (folder / "config.json").write_text(json.dumps(older_keys(config), indent=1))
    write_tokenizer(folder, len(made.tables["E"]))
    tensors = _tensors(cell, made)
    head = {name: tensors[name] for name in (made.family.output_head or "",) if name in tensors}
    rest = {name: tensor for name, tensor in tensors.items() if name not in head}
    metadata = {"format": "pt"}
    match cell.layout:
        case "single":
            save_file(tensors, folder / "model.safetensors", metadata=metadata)
        case "torch":
            torch.save(tensors, folder / "pytorch_model.bin")
        case "two-formats":
            save_file(tensors, folder / "model.safetensors", metadata=metadata)
            torch.save(rest, folder / "pytorch_model.bin")
        case "sharded":
            shards = {"model-00001-of-00002.safetensors": rest, "model-00002-of-00002.safetensors": head}
            if not head:
                last = sorted(rest)[-1]
                shards["model-00002-of-00002.safetensors"] = {last: rest.pop(last)}
            _index(shards, folder)
        case "stray" | "stray-model":
            name = "extra.safetensors" if cell.layout == "stray" else "model-extra.safetensors"
            _index({"model-00001-of-00001.safetensors": rest}, folder)
            save_file(head, folder / name, metadata=metadata)
    return folder


def job(cell: Cell, made: Base, folder: Path, number: int) -> dict[str, Any]:
    """Return what a runner needs to know of a checkpoint."""
    return {
        "id": number,
        "cell": cell.name,
        "family": made.config.get("model_type", ""),
        "class": cell.family,
        "folder": str(folder),
        "prompt": list(made.prompt),
        "reference": str(made.reference),
        "embedding": made.family.input_embedding,
        "head": made.family.output_head,
        "bias": made.bias_names[0],
        "biases": list(made.bias_names),
        "tables": _other_tables(made.family),
        "stored": {"embedding": cell.embedding, "head": cell.head, "bias": cell.bias},
        "dtype": cell.dtype,
        "layout": cell.layout,
    }


def _other_tables(family: Family) -> list[str]:
    """Return the names in memory of the tables that the class can tie to the embedding, except the head."""
    renames = dict(family.renames)
    words = [group for group in family.groups if group.role is Role.WORD_EMBEDDING]
    names = [name for group in words for name in (group.canonical, *group.members)]
    return [renames.get(name, name) for name in names if name not in (family.input_embedding, family.output_head)]


def _index(shards: dict[str, dict[str, torch.Tensor]], folder: Path) -> None:
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    total = sum(tensor.nbytes for tensors in shards.values() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for file, tensors in shards.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})


def _tensors(cell: Cell, made: Base) -> dict[str, torch.Tensor]:
    kind = getattr(torch, _NAMES[cell.dtype])
    tensors = {name: _cast(tensor, kind) for name, tensor in made.others.items()}
    if cell.embedding:
        tensors[made.family.input_embedding or ""] = made.tables["E"].to(kind)
    if cell.head != ABSENT:
        table = made.tables["E" if cell.head == "equal" else cell.head]
        tensors[made.family.output_head or ""] = table.to(torch.bfloat16 if cell.dtype == "mixed" else kind).clone()
    if cell.bias != "none":
        bias = torch.zeros_like(made.bias) if cell.bias == "zero" else made.bias
        shape = (1, len(bias)) if made.family.bias_is_row else (len(bias),)
        tensors[made.bias_names[0]] = bias.reshape(shape).to(kind)
    return tensors


def _cast(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(entry) for key, entry in value.items() if key != FLAG}
    return value


def _flagged(config: dict[str, Any], family: Family, flags: tuple[Flag, ...]) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(config)
    for level, flag in zip(("", *family.levels[:1]), flags, strict=True):
        place = made
        for key in level.split(".") if level else ():
            place = place.setdefault(key, {})
        if flag != ABSENT:
            place[FLAG] = flag
    return made


Flag = bool | str | None

ABSENT = "absent"
FLAGS: tuple[Flag, ...] = (True, False, ABSENT, None)
"""Values of ``tie_word_embeddings``; ``ABSENT``: the config has no such key, ``None``: it is null."""
HEADS = ("absent", "equal", "near", "different", "rows")
"""The stored head beside the embedding: equal, two rows differ, all rows differ, or it has more rows."""
NESTED: tuple[tuple[Flag, Flag], ...] = ((ABSENT, True), (ABSENT, False), (True, False), (False, True), (None, True))
DTYPES = ("BF16", "F16", "mixed")
LAYOUTS = ("sharded", "stray", "stray-model", "two-formats", "torch")


@dataclass(frozen=True)
class Cell:
    """One checkpoint. ``flags`` go with the levels of the config, the top first.

    ``dtype`` is that of every tensor; ``mixed`` stores the head in BF16 beside F32. ``layout`` names the files:
    ``stray`` and ``stray-model`` hold the head in a file that the index does not name; ``two-formats`` has a
    ``pytorch_model.bin`` without the head beside the safetensors file.
    """

    family: str
    flags: tuple[Flag, ...]
    head: str
    embedding: bool = True
    bias: str = "none"
    layout: str = "single"
    dtype: str = "F32"

    @property
    def name(self) -> str:
        """Return a short name for a report."""
        flags = "/".join({True: "T", False: "F", ABSENT: "-", None: "null"}[flag] for flag in self.flags)
        parts = [self.family, flags, f"head {self.head}", "" if self.embedding else "no embedding"]
        parts += [f"bias {self.bias}" if self.bias != "none" else ""]
        parts += [self.layout if self.layout != "single" else "", self.dtype if self.dtype != "F32" else ""]
        return ", ".join(filter(None, parts))


def cells(family: str, levels: int) -> Iterator[Cell]:
    """Yield the cells of a family whose config has ``levels`` levels (1 or 2) with a flag."""

    def flags(flag: Flag) -> tuple[Flag, ...]:
        return (flag,) * levels

    for declared, head, embedding in itertools.product(FLAGS, HEADS, (True, False)):
        if embedding or head != "absent" or declared in (True, False):
            yield Cell(family, flags(declared), head, embedding)
    for pair, head in itertools.product(NESTED if levels == 2 else (), ("absent", "equal", "different")):
        yield Cell(family, pair, head)
    for flag, head, bias in itertools.product((True, False), ("absent", "different"), ("zero", "nonzero")):
        yield Cell(family, flags(flag), head, bias=bias)
    for layout, declared, head in itertools.product(LAYOUTS, FLAGS[:3], ("absent", "equal", "different")):
        if head != "absent" or not layout.startswith("stray"):
            yield Cell(family, flags(declared), head, layout=layout)
    for dtype, flag, head in itertools.product(DTYPES, (True, False), ("absent", "equal", "near", "different")):
        if head != "absent" or dtype != "mixed":
            yield Cell(family, flags(flag), head, dtype=dtype)


CAUSAL = (
    "ApertusForCausalLM", "ArceeForCausalLM", "BloomForCausalLM", "Cohere2ForCausalLM", "CohereForCausalLM",
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Dots1ForCausalLM", "Ernie4_5ForCausalLM",
    "Ernie4_5_MoeForCausalLM", "Exaone4ForCausalLM", "FalconForCausalLM", "FalconH1ForCausalLM",
    "FalconMambaForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GemmaForCausalLM", "Glm4ForCausalLM", "GlmForCausalLM",
    "GptOssForCausalLM", "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM",
    "GraniteMoeSharedForCausalLM", "HeliumForCausalLM", "HunYuanDenseV1ForCausalLM", "JambaForCausalLM",
    "Lfm2ForCausalLM", "LlamaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "MiniMaxForCausalLM",
    "MistralForCausalLM", "MixtralForCausalLM", "MptForCausalLM", "NemotronForCausalLM", "OPTForCausalLM",
    "Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoForCausalLM", "OlmoeForCausalLM", "Phi3ForCausalLM",
    "PhiForCausalLM", "PhimoeForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "SeedOssForCausalLM", "SmolLM3ForCausalLM", "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
)  # fmt: skip
OTHERS = (
    "BartForConditionalGeneration", "BertForMaskedLM", "Gemma3ForConditionalGeneration",
    "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration", "Qwen2VLForConditionalGeneration",
    "T5ForConditionalGeneration",
)  # fmt: skip
"""Classes with text inside a composite, an encoder and a decoder, or no causal head."""

FAMILIES = (*CAUSAL, *OTHERS)

_ROUND = {"vocab_size": 112}
CONFIGS: dict[str, dict[str, Any]] = {
    "BambaForCausalLM": {**_ROUND, "attn_layer_indices": [1]},
    "Ernie4_5_MoeForCausalLM": {"intermediate_size": 160},
    "FalconForCausalLM": {"ffn_hidden_size": 256},
    "FalconMambaForCausalLM": {**_ROUND, "intermediate_size": 128},
    "GraniteMoeHybridForCausalLM": _ROUND,
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]},
    "Mamba2ForCausalLM": _ROUND,
    "MambaForCausalLM": {**_ROUND, "intermediate_size": 128},
    "NemotronHForCausalLM": _ROUND,
    "PhiForCausalLM": {"intermediate_size": 256},
    "SmolLM3ForCausalLM": {"no_rope_layer_interval": 4, "no_rope_layers": [1, 1]},
}
"""What the tiny config of a class needs beyond `fixtures.zoo`, so that llama.cpp computes what transformers computes.

Its converter rounds the vocabulary of the state space models up, and derives sizes that other loaders read.
"""

_OLDER_DTYPE = "torch_dtype"
_OLDER_LAYERS = {"linear_attention": "mamba", "full_attention": "attention"}
"""The names of Granite's layers in transformers before 5.4, which later releases read too."""


def older_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with the keys of transformers 4 beside those of 5; mlx-lm and llama.cpp read these."""
    made: dict[str, Any] = {
        key: older_keys(value) if isinstance(value, dict) else value for key, value in config.items()
    }
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        made.setdefault("rope_theta", rope["rope_theta"])
        if "partial_rotary_factor" in rope:
            made.setdefault("partial_rotary_factor", rope["partial_rotary_factor"])
        made.setdefault("rope_scaling", None)
    if "dtype" in config:
        made[_OLDER_DTYPE] = config["dtype"]
    match str(config.get("model_type")):
        case "gpt2" if "n_positions" in config:
            made.setdefault("n_ctx", config["n_positions"])
        case "granitemoehybrid":
            made["layer_types"] = [_OLDER_LAYERS.get(layer, layer) for layer in config["layer_types"]]
        case "t5" | "mt5" | "umt5":
            made["decoder_start_token_id"] = config.get("pad_token_id")
        case "falcon" if config.get("multi_query") and not config.get("new_decoder_architecture"):
            made["num_kv_heads"] = 1
        case "cohere2":
            made["rotary_pct"] = 1.0
        case "dots1":
            made["scoring_func"] = "sigmoid"
        case "falcon_h1":
            made["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
        case kind if kind.startswith("qwen") and "num_local_experts" in config:
            made.setdefault("num_experts", config["num_local_experts"])
    return made
