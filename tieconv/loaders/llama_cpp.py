"""Predict llama.cpp: `convert_hf_to_gguf.py` writes a GGUF file, and libllama loads its tensors.

An architecture `ties`: it uses the embedding as the head if ``output.weight`` is absent. Other architectures `need` an
output, or always use the `embedding`. The converter's class writes a stored head, `drops` it or `refuses` its name.
Some classes drop it only if the tie flag is true, or if it equals the embedding. libllama refuses a tensor that it does
not use, and a table without one row for each token. It also refuses metadata that lacks a key or asks for other shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tieconv.architectures.effective_flag import FLAG, reading_v4, text_config
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Parameter, Refusal, stopped, unknown
from tieconv.text import in_words, shown

_LOADER = "llama.cpp"
_CONVERTER = "llama.cpp's converter"
_PATTERNS = ("model*.safetensors", "pytorch_model*.bin")
_SHARES = "llama.cpp uses token_embd.weight for both"


def load(inspection: Inspection) -> Loaded:
    """Return the model after conversion and loading; a GGUF file is only loaded."""
    if inspection.checkpoint.format == "gguf":
        return _gguf(inspection)
    formats = (evidence.SAFETENSORS, evidence.TORCH)
    refusal = evidence.by_pattern(inspection, _CONVERTER, formats, *_PATTERNS, indexed=True, prefers=True)
    known = refusal or _known(inspection)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    treatment, pair = known
    # The stored tensors that the converter knows as the embedding. It writes the first and skips the others.
    more = release_tables.by_type(_RELEASE, "embedding names").get(converted_class(inspection), ())
    names = {pair.embedding, *(evidence.in_file(inspection, name) for name in more)}
    embeddings = tuple(name for name in inspection.checkpoint.tensors if name in names)
    dropped = _dropped(inspection, treatment, pair)
    refusal = names_refused(inspection, treatment, pair, stored=bool(embeddings), dropped=dropped)
    drops = converted_class(inspection) in release_tables.by_type(_RELEASE, "classes")["drops layers"]
    refusal = refusal or next(evidence.layers_refused(inspection, pair, drops_surplus=drops), None)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    refusal = rows_refused(inspection, pair, embeddings[0], dropped=dropped)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    written = pair.has_head and not dropped
    model = evidence.PairModel(_LOADER, inspection, pair, has_bias=not treatment.isdisjoint({"bias", "needs bias"}))
    if written:
        remark = f"the converter writes {shown(pair.head)} as output.weight, with any tie flag"
        # The converter drops an equal head. Without a comparison, the model is not known.
        loaded = model.untied(remark=remark, if_differ="converter drops equal" in treatment)
    else:
        loaded = model.tied(embeddings[0], remark=_SHARES)
    values = dict.fromkeys((pair.embedding, *embeddings), Parameter(embeddings[0], pair.embedding))
    shared = values if written else dict.fromkeys((*values, pair.head), values[pair.embedding])
    return replace(loaded, parameters={**loaded.parameters, **shared})


def _gguf(inspection: Inspection) -> Loaded:
    if not inspection.checkpoint.tensors:
        return stopped(_LOADER, unknown("the file holds no tensors"))
    architecture, pair = inspection.family.architecture, evidence.head_pair(inspection)
    if pair is None:
        return stopped(_LOADER, unknown("the file has neither the embedding nor the layers of a language model"))
    if head_rule(architecture) is None:
        sentence = f"tieconv has not read what llama.cpp asks of the architecture {shown(architecture)}"
        return stopped(_LOADER, unknown(sentence))
    model = evidence.PairModel(_LOADER, inspection, pair, has_bias=True)
    refusal = next(_of_file(inspection, pair), None)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    return model.untied() if pair.has_head else model.tied(pair.embedding, remark=_SHARES)


def _of_file(inspection: Inspection, pair: evidence.Pair) -> Iterator[Refusal]:
    error = _pair_error(inspection, pair)
    if error is not None:
        yield Refusal(Cause.NAMES, error)
    yield from _metadata_refused(inspection)
    yield from evidence.layers_refused(inspection, pair)
    architecture, tensors = inspection.family.architecture, inspection.checkpoint.tensors
    shapes, numbers = _asked_of("shapes", architecture), _numbers(inspection)
    if absent := [name for name in _asked_of("needed tensors", architecture) if name not in tensors]:
        yield Refusal(Cause.NAMES, f"llama.cpp needs {in_words(absent)} of the architecture {shown(architecture)}")
    known = release_tables.names(_RELEASE, "tensor names")
    for name, tensor in tensors.items() if _asked_of("needed keys", architecture) else ():
        pattern = ".".join("0" if part.isdigit() else part for part in name.split("."))
        if pattern not in known and pattern.rpartition(".")[0] not in known:
            yield Refusal(Cause.NAMES, f"llama.cpp does not use {shown(name)}, and refuses unused tensors", (name,))
        sides = shapes.get(pattern.replace("blk.0.", "", 1), ())
        for side, length in zip(sides, tensor.shape, strict=False) if len(sides) == len(tensor.shape) else ():
            asked = _product(side, numbers)
            if asked not in (None, length):
                sentence = (
                    f"{shown(name)} has the shape {list(tensor.shape)}, and the metadata asks for {asked} ({side})"
                )
                yield Refusal(Cause.SHAPES, sentence, (name,))


def _pair_error(inspection: Inspection, pair: evidence.Pair) -> str | None:
    architecture, biases = inspection.family.architecture, evidence.stored_bias(inspection)
    name, treatment = shown(architecture), release_tables.by_type(_RELEASE, "architectures")[architecture].split(", ")
    if not pair.has_embedding:
        return f"llama.cpp needs {shown(pair.embedding)} of the architecture {name}"
    if "needs bias" in treatment and not biases:
        return f"llama.cpp needs output.bias of the architecture {name}"
    if biases and not {"bias", "needs bias", "ignores bias"} & {*treatment}:
        return f"llama.cpp does not use {in_words(biases)} of the architecture {name}, and refuses unused tensors"
    return load_error(architecture, pair.head, stored=pair.has_head)


_MOST_LAYERS, _DIGITS, _ALIGNMENT = 512, 4, 32
"""`LLAMA_MAX_LAYERS`, the digits of a number that show whether it is larger, and `TENSOR_ALIGNMENT` in bytes."""
_TOKENIZER, _TOKENS, _NO_TOKENIZER = "tokenizer.ggml.model", "tokenizer.ggml.tokens", ("none", "no_vocab")


def _metadata_refused(inspection: Inspection) -> Iterator[Refusal]:
    """Yield what libllama says of keys that are absent or have another type, and of the start of the tensors.

    It is known for the architectures of which such files were loaded (`tests.oracles.gguf_faults`).
    """
    file, architecture = inspection.checkpoint.files[0], inspection.family.architecture
    metadata, types = file.metadata or {}, file.gguf.types if file.gguf else {}
    starts = [part.tensors[0].range.start for part in inspection.checkpoint.files if part.tensors]
    if any(start % _ALIGNMENT for start in starts):
        yield Refusal(Cause.METADATA, f"llama.cpp needs tensors that start at a multiple of {_ALIGNMENT} bytes")
    needs = _asked_of("needed keys", architecture)
    keys = [f"{architecture}.{name}" for name in needs]
    if needs:
        keys += [_TOKENIZER] if metadata.get(_TOKENIZER) in _NO_TOKENIZER else [_TOKENIZER, _TOKENS]
    if absent := [key for key in keys if key not in types]:
        yield Refusal(Cause.METADATA, f"llama.cpp needs {in_words(absent)} in the metadata")
    counts = {name: "u32" for name in _numbers(inspection) if needs and name != "tokens"}
    for name, kind in {**counts, **needs}.items():
        stored = types.get(f"{architecture}.{name}", kind)
        if stored != kind and (name in needs or stored != "array"):  # a count may be one for each layer
            key = shown(f"{architecture}.{name}")
            yield Refusal(Cause.METADATA, f"llama.cpp needs {key} of the type {kind}, and the file has {stored}")
    key = f"{architecture}.block_count"
    number = metadata.get(key, "1")
    if not (number.isascii() and number.isdigit() and 0 < int(number[:_DIGITS]) <= _MOST_LAYERS):
        sentence = f"llama.cpp needs a number of layers in {shown(key)}, at most {_MOST_LAYERS}"
        yield Refusal(Cause.METADATA, sentence)


def _asked_of(table: str, architecture: str) -> Mapping[str, Any]:
    """Return what libllama asks of the files of an architecture; empty if no faulty file of it was loaded."""
    asked: Mapping[str, Any] = release_tables.by_type(_RELEASE, "files").get(architecture, {}).get(table, {})
    return asked


def _product(side: str, numbers: Mapping[str, int | None]) -> int | None:
    """Return the length of a side such as ``2 * feed_forward_length``; ``None`` if layers differ in it."""
    product = 1
    for key in side.split(" * "):
        factor = int(key) if key.isdigit() else numbers[key]
        if factor is None:
            return None
        product *= factor
    return product


_U32 = re.compile("[0-9]{1,10}")


def _numbers(inspection: Inspection) -> Mapping[str, int | None]:
    """Return the numbers from which libllama computes shapes; ``None`` for one that may differ between layers."""
    file, architecture = inspection.checkpoint.files[0], inspection.family.architecture
    metadata, header = file.metadata or {}, file.gguf

    def number(key: str, default: int | None = 0) -> int | None:
        text = metadata.get(f"{architecture}.{key}")
        several = header is None or f"{architecture}.{key}" in header.lengths
        return None if several else int(text) if text is not None and _U32.fullmatch(text) else default

    heads, width = number("attention.head_count"), number("embedding_length")
    size = width // heads if heads and width is not None else heads
    if f"{architecture}.attention.key_length_swa" in metadata:  # the layers have two sizes
        heads = None
    listed = header.lengths.get(_TOKENS) if header else None
    return {
        "tokens": number("vocab_size") if metadata.get(_TOKENIZER) in _NO_TOKENIZER else listed,
        "embedding_length": width,
        "feed_forward_length": number("feed_forward_length"),
        "attention.head_count": heads,
        "attention.head_count_kv": number("attention.head_count_kv", heads),
        "attention.key_length": number("attention.key_length", size),
        "attention.value_length": number("attention.value_length", size),
    }


def refusal_of_gguf(inspection: Inspection) -> Refusal | None:
    """Return why llama.cpp does not load a GGUF file, or why that is not known."""
    return None if evidence.head_pair(inspection) is None else next(iter(_gguf(inspection).refusals), None)


def _known(inspection: Inspection) -> tuple[Treatment, evidence.Pair] | Refusal:
    """Return what the converter and the loader do with the tables of the class."""
    name, pair = converted_class(inspection), evidence.head_pair(inspection)
    kind = release_tables.kind("llama.cpp", name)
    if kind is None:
        return Refusal(Cause.CONFIG, f"{_CONVERTER} does not know the class {shown(name)}")
    if pair is None or kind == "registered":
        return unknown(f"tieconv has no measurement of llama.cpp for {shown(name)}")
    classes = release_tables.by_type("llama.cpp", "classes")
    if name in classes["not run"]:
        return unknown(f"the small model of {shown(name)} that tieconv tests with does not load in llama.cpp")
    refusal = _config_refused(text_config(inspection), name)
    if refusal is not None:
        return refusal
    has_mtp = any(stored.removeprefix("model.").startswith("mtp.") for stored in inspection.checkpoint.tensors)
    if name in classes["needs mtp"] and not has_mtp:
        return Refusal(Cause.NAMES, f"{_CONVERTER} needs the mtp.* tensors of {shown(name)}, and none is stored")
    return frozenset(kind.split(", ")), pair


def _config_refused(config: Mapping[str, Any], name: str) -> Refusal | None:
    """Return why the converter or libllama fails with the values of a config that transformers wrote.

    The converter takes a Granite layer with another type than ``attention`` for one of Mamba. It gives a Falcon the
    key-value heads of the config, which transformers does not use with ``multi_query``.
    """
    key = release_tables.by_type(_RELEASE, "needs key").get(name)
    if key is not None and config.get(key) is None:
        return Refusal(Cause.CONFIG, f"{_CONVERTER} needs {key} in the config, which does not declare it")
    classes = release_tables.by_type(_RELEASE, "classes")
    if name in classes["attention layers"] and "full_attention" in (config.get("layer_types") or ()):
        sentence = f'{_CONVERTER} does not know the layer type full_attention of the config, only "attention"'
        return Refusal(Cause.CONFIG, sentence)
    one_head = config.get("multi_query", True) and not config.get("new_decoder_architecture")
    heads = config.get("num_kv_heads", config.get("num_attention_heads"))
    if name in classes["multi query"] and one_head and isinstance(heads, int) and heads != 1:
        sentence = f"{_CONVERTER} uses num_kv_heads {heads} of the config, and a model with multi_query has 1"
        return Refusal(Cause.CONFIG, sentence)
    return None


def _dropped(inspection: Inspection, treatment: Treatment, pair: evidence.Pair) -> bool:
    if "converter drops if tied" in treatment:
        # The tie flag that transformers 4 reads for the converter. Without the class it reads the file as it is.
        read = reading_v4(inspection)
        if read is not None:
            return read
        return bool({**inspection.checkpoint.config_values, **text_config(inspection)}.get(FLAG, False))
    return "converter drops" in treatment or ("converter drops equal" in treatment and pair.same is True)


_SOURCE = "llama.cpp as in llama-cpp-python 0.3.36, conversion/ and src/models/; ggml-org/llama.cpp#5824, #12567"
CONSUMERS = (Consumer(_LOADER, "2026", since=(0,), cited=_SOURCE, load=load, ran=("0.3.36",), own_rows=True),)


# Say which names and shapes of a checkpoint llama.cpp's converter and libllama refuse.

Treatment = frozenset[str]
"""What the converter and libllama do with the tables of a class. Its entries are the parts of a kind in the data."""

_RELEASE = "llama.cpp"


def converted_class(inspection: Inspection) -> str:
    """Return the class by which the converter chooses: that of the text config, if it names one."""
    name, nested = inspection.family.architecture, inspection.checkpoint.config_values.get("text_config")
    if name in release_tables.by_type(_RELEASE, "classes")["top level"] or not isinstance(nested, Mapping):
        return name
    classes = nested.get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else name


def names_refused(
    inspection: Inspection, treatment: Treatment, pair: evidence.Pair, *, stored: bool, dropped: bool
) -> Refusal | None:
    """Return the refusal of a name. An embedding is ``stored``, or not; the converter has ``dropped`` a stored head."""
    bias, head = evidence.stored_bias(inspection), shown(pair.head)
    needs_prefix = release_tables.by_type(_RELEASE, "classes")["needs prefix"]
    shortened = stored and pair.embedding != inspection.family.input_embedding
    if "converter refuses both" in treatment or (shortened and converted_class(inspection) in needs_prefix):
        sentence = f"llama.cpp's converter does not know {shown(pair.embedding)} in a model of this class"
        return Refusal(Cause.NAMES, sentence, (pair.embedding,))
    if not stored:
        sentence = f"{shown(pair.embedding)} is not stored, and the architecture needs a token_embd.weight"
        return Refusal(Cause.NAMES, sentence, (pair.embedding,))
    if bias and treatment.isdisjoint({"bias", "needs bias", "ignores bias"}):
        return Refusal(Cause.NAMES, f"the architecture has no tensor for {in_words(bias)}", bias)
    if "needs bias" in treatment and not bias:
        names = tuple(evidence.in_file(inspection, name) for name in inspection.family.output_biases)
        return Refusal(
            Cause.NAMES, f"{in_words(names)} is not stored, and the architecture needs an output.bias", names
        )
    if "needs" in treatment and (dropped or not pair.has_head):
        start = f"the converter drops {head} from a tied model" if pair.has_head else f"{head} is not stored"
        return Refusal(Cause.NAMES, f"{start}, and the architecture needs an output.weight", (pair.head,))
    if pair.has_head and not dropped and not treatment.isdisjoint({"converter refuses", "embedding"}):
        return Refusal(Cause.NAMES, f"the architecture has no tensor for {head}", (pair.head,))
    return None


def rows_refused(inspection: Inspection, pair: evidence.Pair, embedding: str, *, dropped: bool) -> Refusal | None:
    """Return the refusal of a table in the GGUF without one row for each token. A head may be ``dropped``."""
    rows = evidence.row_count(inspection, embedding)
    if pair.has_head and not dropped and (head_rows := evidence.row_count(inspection, pair.head)) != rows:
        sentence = f"{shown(pair.head)} has {head_rows} rows, and {shown(embedding)} has {rows}"
        return Refusal(Cause.SHAPES, sentence, (pair.head, embedding))
    multiple = release_tables.by_type(_RELEASE, "vocabulary multiple").get(converted_class(inspection))
    if multiple is None:
        return evidence.wrong_rows(evidence.without_tensors(inspection, {pair.head} if dropped else ()))
    size = text_config(inspection).get("vocab_size")
    tokens = -(size // -multiple) * multiple if isinstance(size, int) else rows
    if tokens == rows:
        return None
    sentence = f"the converter rounds the vocabulary up to {tokens} tokens, and {shown(embedding)} has {rows} rows"
    return Refusal(Cause.SHAPES, sentence, (embedding,))


# What libllama asks of the head of a GGUF architecture, read from its source.

TIES, NEEDS, EMBEDDING = "ties", "needs", "embedding"
"""It uses the embedding if ``output.weight`` is absent; it needs ``output.weight``; it always uses the embedding."""


def head_rule(architecture: str) -> str | None:
    """Return `TIES`, `NEEDS` or `EMBEDDING` for ``general.architecture``; ``None`` if tieconv does not know it."""
    treatment: str | None = release_tables.by_type("llama.cpp", "architectures").get(architecture)
    return None if treatment is None else treatment.partition(",")[0]


def load_error(architecture: str, head: str, *, stored: bool) -> str | None:
    """Return why libllama does not load a file of the ``architecture`` with or without ``head``, ``None`` if it does.

    ``None`` too for an architecture that `head_rule` does not know.
    """
    rule, name = head_rule(architecture), shown(architecture)
    if rule == NEEDS and not stored:
        return f"llama.cpp needs {shown(head)} of the architecture {name}"
    if rule == EMBEDDING and stored:
        return f"llama.cpp does not use {shown(head)} of the architecture {name}, and refuses unused tensors"
    return None
