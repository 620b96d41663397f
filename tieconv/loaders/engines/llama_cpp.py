"""Predict llama.cpp: `convert_hf_to_gguf.py` writes a GGUF file, and libllama loads its tensors.

An architecture `ties`: it uses the embedding as the head if ``output.weight`` is absent. Other architectures `need` an
output, or always use the `embedding`. The converter's class writes a stored head, `drops` it or `refuses` its name.
Some classes drop it only if the tie flag is true, or if it equals the embedding. libllama refuses a tensor that it does
not use, and a table without one row for each token.
"""

from __future__ import annotations

from dataclasses import replace

from tieconv.architectures.effective_flag import FLAG, reading_v4, text_config
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.engines.gguf_architectures import head_rule, load_error
from tieconv.loaders.engines.llama_cpp_names import (
    Treatment,
    converted_class,
    embeddings_in_file,
    names_refused,
    rows_refused,
)
from tieconv.loaders.evidence.head_pair import Pair, head_pair
from tieconv.loaders.evidence.pair_model import PairModel
from tieconv.loaders.evidence.unclear import SAFETENSORS, TORCH
from tieconv.loaders.evidence.weight_patterns import by_pattern
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Parameter, Refusal, stopped, unknown
from tieconv.text import shown

_LOADER = "llama.cpp"
_CONVERTER = "llama.cpp's converter"
_PATTERNS = ("model*.safetensors", "pytorch_model*.bin")


def load(inspection: Inspection) -> Loaded:
    """Return the model after conversion and loading; a GGUF file is only loaded."""
    if inspection.checkpoint.format == "gguf":
        return _gguf(inspection)
    formats = (SAFETENSORS, TORCH)
    refusal = by_pattern(inspection, _CONVERTER, formats, *_PATTERNS, indexed=True, prefers=True)
    known = refusal or _known(inspection)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    treatment, pair = known
    embeddings = embeddings_in_file(inspection, pair)
    dropped = _dropped(inspection, treatment, pair)
    refusal = names_refused(inspection, treatment, pair, stored=bool(embeddings), dropped=dropped)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    written = pair.has_head and not dropped
    refusal = rows_refused(inspection, pair, embeddings[0], dropped=dropped)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    model = PairModel(_LOADER, inspection, pair, has_bias=not treatment.isdisjoint({"bias", "needs bias"}))
    if written:
        remark = f"the converter writes {shown(pair.head)} as output.weight, with any tie flag"
        # The converter drops an equal head. Without a comparison, the model is not known.
        loaded = model.untied(remark=remark, if_differ="converter drops equal" in treatment)
    else:
        loaded = model.tied(embeddings[0], remark="llama.cpp uses token_embd.weight for both")
    values = dict.fromkeys((pair.embedding, *embeddings), Parameter(embeddings[0], pair.embedding))
    shared = values if written else dict.fromkeys((*values, pair.head), values[pair.embedding])
    return replace(loaded, parameters={**loaded.parameters, **shared})


def _gguf(inspection: Inspection) -> Loaded:
    """Return the model that libllama loads from a GGUF file."""
    if not inspection.checkpoint.tensors:
        return stopped(_LOADER, unknown("the file holds no tensors"))
    architecture, pair = inspection.family.architecture, head_pair(inspection)
    if head_rule(architecture) is None or pair is None:
        return stopped(
            _LOADER, unknown(f"tieconv has not read what llama.cpp asks of the architecture {shown(architecture)}")
        )
    model = PairModel(_LOADER, inspection, pair, has_bias=True)
    error = load_error(architecture, pair.head, stored=pair.has_head)
    if error is not None:
        return stopped(_LOADER, Refusal(Cause.NAMES, error))
    return (
        model.untied()
        if pair.has_head
        else model.tied(pair.embedding, remark="llama.cpp uses token_embd.weight for both")
    )


def _known(inspection: Inspection) -> tuple[Treatment, Pair] | Refusal:
    """Return what the converter and the loader do with the tables of the class."""
    name, pair = converted_class(inspection), head_pair(inspection)
    kind = release_tables.kind("llama.cpp", name)
    if kind is None:
        return Refusal(Cause.CONFIG, f"{_CONVERTER} does not know the class {shown(name)}")
    if pair is None or kind == "registered":
        return unknown(f"tieconv has no measurement of llama.cpp for {shown(name)}")
    classes = release_tables.by_type("llama.cpp", "classes")
    if name in classes["not run"]:
        return unknown(f"the small model of {shown(name)} that tieconv tests with does not load in llama.cpp")
    has_mtp = any(stored.removeprefix("model.").startswith("mtp.") for stored in inspection.checkpoint.tensors)
    if name in classes["needs mtp"] and not has_mtp:
        return Refusal(Cause.NAMES, f"{_CONVERTER} needs the mtp.* tensors of {shown(name)}, and none is stored")
    return frozenset(kind.split(", ")), pair


def _dropped(inspection: Inspection, treatment: Treatment, pair: Pair) -> bool:
    """Return whether the converter leaves a stored head out."""
    if "converter drops if tied" in treatment:
        return _flag(inspection)
    return "converter drops" in treatment or ("converter drops equal" in treatment and pair.same is True)


def _flag(inspection: Inspection) -> bool:
    """Return the tie flag that transformers 4 reads for the converter. Without the class it reads the file as it is."""
    read = reading_v4(inspection)
    if read is not None:
        return read
    return bool({**inspection.checkpoint.config_values, **text_config(inspection)}.get(FLAG, False))


CONSUMERS = (
    Consumer(
        "llama.cpp",
        "2026",
        since=(0,),
        before=None,
        cited="llama.cpp as in llama-cpp-python 0.3.36, conversion/ and src/models/; ggml-org/llama.cpp#5824, #12567",
        load=load,
        ran=("0.3.36",),
        own_rows=True,
    ),
)
