"""Define a layout. This one is `plain`: the names of transformers' exporter, for any program."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.formats.directory import GENERATION, generation_config
from tieconv.onnx.parity.bindings import DECODER, ENCODER, Kind
from tieconv.onnx.quantise import Scheme
from tieconv.reference.model import load_config
from tieconv.sources.local import open_files
from tieconv.text import Hint, option, shown


@record
class Model:
    """What a layout reads: the config as JSON and as transformers loads it, and the generation config as JSON."""

    source: str
    architecture: str
    values: Mapping[str, Any]
    config: Any
    generation: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        return str(self.values.get("model_type", ""))

    def whole(self, *names: str) -> int:
        """Return the first of these entries of the config that is a positive integer; 0 if none is."""
        return _positive(getattr(self.config, name, None) for name in names)

    def stated(self, *names: str) -> int:
        """Return the first of these entries of `config.json` that is a positive integer; 0 if none is."""
        return _positive(map(self.values.get, names))


def _positive(entries: Iterable[object]) -> int:
    return next((value for value in entries if isinstance(value, int) and value > 0), 0)


STEM = "model"
"""The name of a single graph, without the extension."""


class Layout:
    """What one program loads of a ``model`` in a ``precision``, quantised by ``scheme`` or not.

    The base class is the layout `plain`, which every kind of graph has.
    """

    name = "plain"
    program = ""
    """The program with the release that was tried, for messages."""
    kinds: frozenset[Kind] = frozenset(Kind)
    precisions: tuple[str, ...] = ("fp32", "fp16", "bf16")
    data = "model.onnx.data"
    renames = False
    """Whether cache tensors are named `past_key_values.N.key` and `present.N.key`."""
    reads_generation = False
    """Whether `documents` reads the generation config."""
    batch_axis = "batch"
    """The name of the batch axis of an encoder-decoder's caches."""
    made: frozenset[str] = frozenset()
    """Documents that this layout writes; the model's own files with these names are not copied."""

    def __init__(self, model: Model, precision: str, scheme: Scheme | None = None) -> None:
        self.model, self.precision, self.scheme = model, precision, scheme

    def graph(self, stem: str = STEM) -> str:
        """Return the path of a graph in OUT. ``stem`` is its name until then, without the extension."""
        return f"{stem}.onnx"

    def data_of(self, stem: str = STEM) -> str:
        """Return the name of the graph's data file, which is beside it. Graphs may share one."""
        return self.data

    def notes(self, kind: Kind) -> tuple[str, ...]:
        """Return what the user should know of the files."""
        if kind is not Kind.PAIR or self.data_of(ENCODER) == self.data_of(DECODER):
            return ()
        return (f"{self.program} loads a data file for each graph, so encoder and decoder each store the tied matrix",)

    def documents(self, kind: Kind) -> dict[str, str]:
        """Return further files by name."""
        return {}

    def cache_shape(self) -> tuple[int, int] | None:
        """Return heads and width of the empty cache that the program feeds; None if it reads them from the graph."""
        return None

    def empty_cache(self) -> tuple[int, int] | None:
        """Return heads and width of the empty cache of an encoder-decoder; None if read from the graph."""
        return None

    def check(self, kind: Kind) -> None:
        """Check that the program can load such a graph. Raises `RefusedError`."""
        if kind not in self.kinds:
            raise self.refused(f"the layout {self.name} does not support this kind of graph ({kind})")
        if self.precision not in self.precisions:
            raise self.refused(f"the layout {self.name} does not support {self.precision}")
        if self.scheme is not None and self.name != Layout.name and self.precision != "fp32":
            raise self.refused(f"the layout {self.name} was tried with quantised graphs in fp32 only")
        if kind is Kind.CACHED:
            heads, whole = self.model.whole("num_attention_heads"), self.model.whole
            width = whole("head_dim") or (whole("hidden_size") // heads if heads else 0)
            self.check_cache((whole("num_key_value_heads", "num_attention_heads"), width))

    def check_cache(self, cache: tuple[int, int]) -> None:
        """Check the heads and the width of the model's cache. Raises `RefusedError` if the program feeds others."""
        fed = self.cache_shape()
        if fed is not None and fed != cache:
            feeds, has = (f"{heads} heads (width {width})" for heads, width in (fed, cache))
            kind = self.model.model_type
            raise self.refused(f"{self.program} feeds {kind} a cache of {feeds}, but the model has {has}")

    def refused(self, why: str) -> RefusedError:
        """Return the error of a model that this layout cannot express."""
        problem = f"{shown(self.model.source)}: {shown(self.model.architecture)}: {shown(why, 300)}"
        hint = Hint("export without ", option("layout"), ", or with another layout")
        return RefusedError(problem, hint, "export.layout")


_HEAD_DIM = frozenset({"gemma", "gemma3_text", "gpt_oss", "nemotron"})
"""Model types whose `head_dim` optimum reads."""
_GROUPED = frozenset({
    "arcee", "cohere", "gemma", "gemma3_text", "glm", "granite", "gpt_oss", "helium", "mistral", "llama", "nemotron",
    "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm",
})  # fmt: skip
"""Model types whose `num_key_value_heads` optimum reads. Others have as many as `num_attention_heads`."""
_SPECIAL = frozenset({"bloom", "deepseek_v3", "falcon", "gpt_bigcode"})
"""Model types whose cache optimum builds with a separate rule."""


class Optimum(Layout):
    """`optimum.onnxruntime.ORTModelForCausalLM` of optimum-onnx 0.1.0 (`modeling_decoder.py`)."""

    name = "optimum"
    program = "optimum-onnx 0.1.0"
    kinds = frozenset({Kind.CACHED, Kind.MASKED, Kind.PAIR})
    precisions = ("fp32", "fp16")
    data = "model.onnx_data"
    renames = True

    def cache_shape(self) -> tuple[int, int] | None:
        heads = self.model.whole("num_attention_heads")
        width = (
            self.model.whole("head_dim")
            if self.model.model_type in _HEAD_DIM
            else self.model.whole("hidden_size") // max(heads, 1)
        )
        return (self.model.whole("num_key_value_heads") if self.model.model_type in _GROUPED else heads), width

    def empty_cache(self) -> tuple[int, int] | None:
        return self.cache_shape()

    def check(self, kind: Kind) -> None:
        super().check(kind)
        if kind is Kind.PAIR and not (self.model.whole("num_attention_heads") and self.model.whole("hidden_size")):
            raise self.refused(f"{self.program} needs num_attention_heads and hidden_size of the decoder")
        if kind is Kind.CACHED and self.model.model_type in _SPECIAL:
            raise self.refused(f"{self.program} feeds {self.model.model_type} a cache of another form")


_SAME = (
    "chatglm", "ernie4_5", "gemma", "gemma2", "gemma3_text", "granite", "internlm2", "llama", "mistral", "nemotron",
    "olmo", "phi", "phi3", "phimoe", "qwen2", "qwen3", "smollm3",
)  # fmt: skip
_TYPES = dict(zip(_SAME, _SAME, strict=True)) | {"gpt_oss": "gptoss", "hunyuan_v1_dense": "hunyuandensev1"}
"""The types of onnxruntime-genai for decoders with a cache of keys and values, by transformers' model types."""
_SEARCH: dict[str, Any] = {
    "diversity_penalty": 0.0, "do_sample": False, "length_penalty": 1.0, "min_length": 0, "no_repeat_ngram_size": 0,
    "num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
}  # fmt: skip
"""Settings of the search with their values for a model whose generation config does not set them."""


class GenAI(Layout):
    """`onnxruntime_genai` 0.18.0. Its own builder writes the same entries (`models/builders/base.py`)."""

    name = "genai"
    program = "onnxruntime-genai 0.18.0"
    kinds = frozenset({Kind.CACHED})
    renames = True
    reads_generation = True
    made = frozenset({"genai_config.json"})

    def check(self, kind: Kind) -> None:
        super().check(kind)
        if self.model.model_type == "gpt2":
            raise self.refused(f"{self.program} reads a layer's keys and values of gpt2 from one tensor")
        if self.model.model_type not in _TYPES:
            raise self.refused(f"{self.program} has no model type for {self.model.model_type}")
        if not self.model.whole("max_position_embeddings"):
            raise self.refused("the config has no max_position_embeddings, which genai_config.json needs")

    def documents(self, kind: Kind) -> dict[str, str]:
        document = {"model": self._model(), "search": _search(self.model)}
        return {"genai_config.json": json.dumps(document, indent=4) + "\n"}

    def _model(self) -> dict[str, Any]:
        heads = self.model.whole("num_attention_heads")
        tokens = {key: _token(self.model, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        first = tokens["eos_token_id"][0] if isinstance(tokens["eos_token_id"], list) else tokens["eos_token_id"]
        # genai has no empty entry: a model without padding pads with the token that ends a text.
        tokens["pad_token_id"] = first if tokens["pad_token_id"] is None else tokens["pad_token_id"]
        return {
            "type": _TYPES[self.model.model_type],
            **{key: token for key, token in tokens.items() if token is not None},
            "context_length": self.model.whole("max_position_embeddings"),
            "vocab_size": self.model.whole("vocab_size"),
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": self.graph(),
                "head_size": self.model.whole("head_dim") or self.model.whole("hidden_size") // heads,
                "hidden_size": self.model.whole("hidden_size"),
                "num_attention_heads": heads,
                "num_hidden_layers": self.model.whole("num_hidden_layers"),
                "num_key_value_heads": self.model.whole("num_key_value_heads") or heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        }


def _token(model: Model, key: str) -> Any:
    value = model.generation.get(key)
    return getattr(model.config, key, None) if value is None else value


def _search(model: Model) -> dict[str, Any]:
    settings = {key: model.generation[key] for key in _SEARCH if model.generation.get(key) is not None}
    return {
        **_SEARCH,
        **settings,
        "early_stopping": True,
        "max_length": model.whole("max_position_embeddings"),
        # The graph returns a new cache at each step.
        "past_present_share_buffer": False,
    }


_GROUPED_ATTENTION = frozenset({
    "afmoe", "apertus", "arcee", "cohere", "cohere2", "gpt_oss", "granite", "llama", "mistral", "mobilellm", "nanochat",
    "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3_moe", "smollm3", "starcoder2", "ernie4_5",
    "exaone", "gemma", "gemma2", "gemma3_text", "glm", "helium", "hunyuan_v1_dense", "ministral", "ministral3", "qwen3",
    "solar_open", "vaultgemma",
})  # fmt: skip
"""Decoders with a cache of `num_key_value_heads` and `head_dim` (or hidden size / heads)."""
_HEAD_WIDTH = frozenset({
    "ernie4_5", "gemma", "gemma2", "gemma3_text", "glm", "helium", "hunyuan_v1_dense", "ministral", "ministral3",
    "qwen3", "solar_open", "vaultgemma",
})  # fmt: skip
"""Those of them that need `head_dim` in the config."""
_WHOLE = frozenset({"codegen", "gpt2", "gpt_neox", "gptj", "jais", "opt", "stablelm"})
"""Decoders with a cache of as many heads as `num_attention_heads`."""
_PAIRS = frozenset({
    "bart", "blenderbot", "blenderbot-small", "longt5", "m2m_100", "marian", "mbart", "mt5", "t5",
    "vision-encoder-decoder", "whisper",
})  # fmt: skip
"""Encoder-decoders. transformers.js reads the shape of their caches from the graph."""
_MASKED = frozenset({
    "albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "esm", "mobilebert",
    "modernbert", "mpnet", "roberta", "roformer", "squeezebert", "xlm", "xlm-roberta",
})  # fmt: skip

_DTYPES: dict[tuple[str, Scheme | None], tuple[str, str]] = {
    ("fp32", None): ("fp32", ""),
    ("fp16", None): ("fp16", "_fp16"),
    ("fp32", Scheme.INT8): ("q8", "_quantized"),
    ("fp32", Scheme.DYNAMIC): ("q8", "_quantized"),
    ("fp32", Scheme.INT4): ("q4", "_q4"),
}
"""The values of `dtype` and the suffixes of their files (`src/utils/dtypes.js`), by precision and scheme."""


class TransformersJS(Layout):
    """`@huggingface/transformers` 4.3.1 (`src/configs.js`, `src/models/registry.js`, `src/models/session.js`)."""

    name = "transformers.js"
    program = "transformers.js 4.3.1"
    kinds = frozenset({Kind.CACHED, Kind.MASKED, Kind.PAIR})
    precisions = ("fp32", "fp16")
    renames = True
    batch_axis = "batch_size"
    made = frozenset({"config.json"})

    def _name(self, stem: str) -> str:
        """Return the name of a graph, to which transformers.js adds a suffix for its type."""
        return f"{stem}{_DTYPES[self.precision, self.scheme][1]}"

    def graph(self, stem: str = STEM) -> str:
        return f"onnx/{self._name(stem)}.onnx"

    def data_of(self, stem: str = STEM) -> str:
        # The browser loads a data file for one graph, by the graph's name.
        return f"{self._name(stem)}.onnx_data"

    def check(self, kind: Kind) -> None:
        super().check(kind)
        types = {Kind.MASKED: _MASKED, Kind.PAIR: _PAIRS}.get(kind, _GROUPED_ATTENTION | _WHOLE)
        if self.model.model_type not in types:
            raise self.refused(f"the layout {self.name} does not support the model type {self.model.model_type}")
        decoder = self.model.values.get("decoder")
        inner = str(decoder.get("model_type", "")) if isinstance(decoder, dict) else ""
        if inner and inner not in _PAIRS | {"trocr"}:
            raise self.refused(f"{self.program} feeds a decoder of type {inner} no cache of the encoder")

    def cache_shape(self) -> tuple[int, int] | None:
        # transformers.js reads the file, and not the defaults of transformers' class.
        heads = self.model.stated("num_attention_heads", "n_head")
        width = self.model.stated("head_dim") if self.model.model_type not in _WHOLE else 0
        if self.model.model_type not in _HEAD_WIDTH:
            width = width or self.model.stated("hidden_size", "n_embd") // max(heads, 1)
        return (heads if self.model.model_type in _WHOLE else self.model.stated("num_key_value_heads")), width

    def documents(self, kind: Kind) -> dict[str, str]:
        stems = (ENCODER, DECODER) if kind is Kind.PAIR else (STEM,)
        dtype, _ = _DTYPES[self.precision, self.scheme]
        settings: dict[str, Any] = {
            "dtype": dtype,
            "use_external_data_format": {f"{self._name(stem)}.onnx": 1 for stem in stems},
        }
        if self.precision == "fp16":
            settings["kv_cache_dtype"] = {dtype: "float16"}
        return {"config.json": json.dumps({**self.model.values, "transformers.js_config": settings}, indent=2) + "\n"}


# List the layouts by the words of `--layout`.

LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in (Layout, Optimum, GenAI, TransformersJS)}


def read_model(checkpoint: Checkpoint, architecture: str, layout: type[Layout]) -> Model:
    """Return the model as ``layout`` reads it. Raises `UnreadableError` for a generation config that is not JSON."""
    generation: Mapping[str, Any] = {}
    if layout.reads_generation and GENERATION in checkpoint.companions:
        with open_files(checkpoint.root) as files:
            generation = generation_config(files)
    config = load_config(checkpoint.root)
    return Model(checkpoint.source, architecture, checkpoint.config_values, config, generation)


# Give the exporter's files the names of a layout: cache tensors, the data file, and the graph in OUT.

GRAPH = "model.onnx"
"""The name of the graph until it is in OUT."""
_CACHE = re.compile(
    r"(?:(?:input|output)\.)?(?:past_key_values|cache)\.(?:layers\.)?(?P<layer>\d+)\.(?P<part>key|value)s?"
)


def arrange(raw: Path, layout: Layout) -> None:
    """Rename the cache tensors of the graph in the directory ``raw``, and its data file, as ``layout`` says.

    The weights are not read. Raises `RefusedError` if the program would feed a cache of another shape.
    """
    data = layout.data_of()
    if not layout.renames and data == f"{GRAPH}.data":
        return
    graph = ir.load(raw / GRAPH)
    if layout.renames:
        for cache in _rename_caches(graph):
            layout.check_cache(cache)
    if (raw / f"{GRAPH}.data").exists():
        os.rename(raw / f"{GRAPH}.data", raw / data)
        stored = [value for part in graph.graphs() for value in part.initializers.values()]
        for value in stored:
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                span = tensor.offset, tensor.length, tensor.dtype
                value.const_value = ir.ExternalTensor(
                    data, *span, shape=tensor.shape, name=tensor.name, base_dir=tensor.base_dir
                )
    ir.save(graph, raw / GRAPH)


def arrange_pair(decoder: Path, layout: Layout) -> None:
    """Give the axes of the decoder's caches the names and sizes that the program reads.

    If the program feeds an empty cache with other heads or another width, these two axes are open. ONNX Runtime ignores
    the shape of an empty tensor when it joins tensors.
    """
    graph = ir.load(decoder)
    fed = layout.empty_cache()
    for value in graph.graph.inputs:
        if value.shape is not None and str(value.name).startswith("past_key_values."):
            _, heads, past, width = value.shape
            sides = (heads, width) if fed in (None, (heads, width)) else ("heads", "width")
            value.shape = ir.Shape([layout.batch_axis, sides[0], past, sides[1]])
    ir.save(graph, decoder)


def published(layout: Layout, stems: Iterable[str]) -> dict[str, Path]:
    """Return the paths in OUT of the graphs and their data, by their names until then."""
    paths = {}
    for stem in stems:
        final = Path(layout.graph(stem))
        paths[f"{stem}.onnx"] = final
        data = layout.data_of(stem)
        paths[data] = final.parent / data
    return paths


def publish_names(new: Path, paths: Mapping[str, Path]) -> None:
    """Move the graphs and their data to their paths in OUT (`published`), relative to the directory ``new``."""
    for name, path in paths.items():
        if (new / name).exists() and new / name != new / path:
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            os.rename(new / name, new / path)


def _rename_caches(model: ir.Model) -> Iterator[tuple[int, int]]:
    """Name the cache tensors, and yield heads and width of each input."""
    for values, prefix in ((model.graph.inputs, "past_key_values"), (model.graph.outputs, "present")):
        for value in values:
            match = _CACHE.fullmatch(value.name or "")
            if match is None:
                continue
            value.name = f"{prefix}.{match['layer']}.{match['part']}"
            shape = value.shape
            if prefix == "past_key_values" and shape is not None:
                heads, width = shape[1], shape[3]
                if isinstance(heads, int) and isinstance(width, int):
                    yield heads, width
