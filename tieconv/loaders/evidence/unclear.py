"""Say why a loader does not reach the tensors of a model, or why tieconv makes no claim about them."""

from __future__ import annotations

from collections.abc import Collection

from tieconv.architectures import unexplained
from tieconv.architectures.effective_flag import text_config
from tieconv.checkpoint.family import Family, Knowledge, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import BLOCKING, Layout
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import Pair, head_pair, in_file
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.text import shown

SAFETENSORS, TORCH = "safetensors", "torch"


def unclear_files(inspection: Inspection, *clear: str) -> Refusal | None:
    """Return why tieconv cannot tell which files are the model, or ``None``.

    ``clear`` are codes of cautions that do not matter to this loader. A missing index never matters.
    """
    checkpoint = inspection.checkpoint
    if checkpoint.format == "gguf":
        return unknown("GGUF files are for llama.cpp and the programs that use it")
    if checkpoint.adapter is not None:
        return unknown("the model is an adapter, and its base model decides")
    codes = BLOCKING.keys() - {"index.absent", *clear}
    blocking = next((caution for caution in checkpoint.cautions if caution.code in codes), None)
    if blocking is not None:
        return unknown(f"tieconv cannot tell which files are the model: {shown(blocking.message)}")
    if checkpoint.config is None or checkpoint.config.name != "config.json":
        return Refusal(Cause.FILES, "there is no config.json next to the weights")
    return None


def unclear_class(inspection: Inspection, *, codes: bool = False) -> Refusal | None:
    """Return why tieconv cannot tell how the class uses its tensors, or ``None``.

    ``codes`` says that the loader reads the names and the codes of MLX.
    """
    family = inspection.family
    if family.tying is Tying.HEADLESS or (family.knowledge is Knowledge.TABLE and family.output_head is None):
        return unknown("the architecture has no output head by design")
    if family.knowledge is not Knowledge.TABLE:
        return unknown(f"tieconv has no measurement of {_class_name(family)}")
    if family.mlx_names and not codes:
        return unknown("mlx-lm or mlx-vlm named the tensors, and tieconv has no measurement of this loader for that")
    names = unexplained(inspection)
    if names:
        return unknown(f"{shown(names[0])} may be part of the head or embedding, and tieconv does not know its form")
    if family.pieces:
        return unknown("the file stores the input embedding as several tensors")
    if _halves_separate(inspection):
        return unknown("share_encoder_decoder_embeddings is false, and tieconv has no measurement of that")
    tables = () if codes else (name for name in (family.input_embedding, family.output_head) if name)
    quantised = next((name for name in tables if _is_quantised(inspection, name)), None)
    if quantised is not None:
        return unknown(f"{shown(quantised)} is stored as quantised codes")
    return None


def wrong_format(inspection: Inspection, loader: str, formats: Collection[str]) -> Refusal | None:
    """Return why the loader does not read files of this format, or ``None``."""
    checkpoint = inspection.checkpoint
    if checkpoint.format not in formats:
        return Refusal(Cause.FILES, f"{loader} reads {' and '.join(formats)} files, not {shown(checkpoint.format)}")
    if checkpoint.layout is Layout.FILE:
        return unknown(f"{loader} loads a model directory, not a single file")
    return None


def known_pair(
    inspection: Inspection, loader: str, release: str, model_type: str | None = None
) -> tuple[str, Pair] | Refusal:
    """Return the table of ``release`` that lists the model's class or ``model_type``, and the embedding and head.

    The refusal says that tieconv has no data about the loader and the class.
    """
    family = inspection.family
    kind = release_tables.kind(release, family.architecture if model_type is None else model_type)
    pair = head_pair(inspection)
    if kind is not None and pair is not None:
        return kind, pair
    if model_type is None:
        return unmeasured(inspection, loader)
    return unknown(f"tieconv has no measurement of {loader} for models {of_type(family.model_type)}")


def of_type(kind: str) -> str:
    """Return ``of type llama``; a type that a reader cannot see is in quotes."""
    if not kind:
        return "without a model type"
    return f"of type {shown(kind)}" if kind.strip() else f'of type "{shown(kind)}"'


def unmeasured(inspection: Inspection, loader: str) -> Refusal:
    """Return the refusal of a claim about a class that tieconv did not load with ``loader``."""
    return unknown(f"tieconv has no measurement of {loader} for {_class_name(inspection.family)}")


def _class_name(family: Family) -> str:
    kind = f" with model_type {shown(family.model_type)}" if family.since and family.model_type else ""
    return f"{shown(family.architecture)}{kind}" if family.architecture else "a config without a class"


def _halves_separate(inspection: Inspection) -> bool:
    """Return whether the config gives the encoder and the decoder separate tables, as Marian's can."""
    shared = text_config(inspection).get("share_encoder_decoder_embeddings", True)
    return not shared and inspection.family.text_type in release_tables.names("transformers-5", "halves apart")


def _is_quantised(inspection: Inspection, name: str) -> bool:
    tensors = inspection.checkpoint.tensors
    return quantised_twin(in_file(inspection, name), tensors) is not None
