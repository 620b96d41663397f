"""Questions that several loaders ask of a model, and the phrases in which they answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from tieconv.architectures import locate, spelled
from tieconv.architectures.flag_levels import FLAG as FLAG
from tieconv.architectures.flag_levels import text_config
from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.files.cautions import BLOCKING
from tieconv.checkpoint.files.model_files import Layout
from tieconv.checkpoint.inspection import BiasState, Inspection, State
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.quantised import quantised_twin
from tieconv.checkpoint.tie_group import Member
from tieconv.checkpoint.value_type import record
from tieconv.loaders import release_tables
from tieconv.loaders.interface import Verdict, error, unknown
from tieconv.text import shown

SAFETENSORS, TORCH = "safetensors", "torch"


@record
class Pair:
    """The input embedding and the head, by their names in the file, and whether the file holds them.

    ``same`` says whether the stored two hold the same values, ``None`` where that was not compared or is not to be.
    """

    embedding: str
    head: str
    has_embedding: bool
    has_head: bool
    same: bool | None


def unclear(inspection: Inspection) -> Verdict | None:
    """Why nobody can say what a loader does with the model; ``None`` where it can be said."""
    return unsettled(inspection) or unclear_class(inspection)


def unsettled(inspection: Inspection, *clear: str) -> Verdict | None:
    """The part of it that is about the files; ``clear`` are codes of cautions that leave this loader no doubt.

    Which shards are the model is clear without an index too.
    """
    checkpoint = inspection.checkpoint
    if checkpoint.format == "gguf":
        return unknown("a GGUF file is made for llama.cpp and the programs built on it")
    if checkpoint.adapter is not None:
        return unknown("an adapter alone is loaded onto its base model")
    codes = BLOCKING.keys() - {"index.absent", *clear}
    blocking = next((caution for caution in checkpoint.cautions if caution.code in codes), None)
    if blocking is not None:
        return unknown(f"which files are the model is not clear: {shown(blocking.message)}")
    if checkpoint.config is None:
        return error("there is no config.json beside the weights")
    return None


def unclear_class(inspection: Inspection) -> Verdict | None:
    """The part of it that is about the architecture and its tensors."""
    family = inspection.family
    if family.tying is Tying.HEADLESS or (family.knowledge is Knowledge.TABLE and family.output_head is None):
        return unknown("the architecture has no output head by design")
    if family.knowledge is not Knowledge.TABLE:
        return unknown("the architecture is not in the measured table")
    if family.pieces:
        return unknown("its input embedding is several tensors in the file")
    if _halves_apart(inspection):
        return unknown("share_encoder_decoder_embeddings is false, and which tables are one then was not measured")
    quantised = next(
        (name for name in (family.input_embedding, family.output_head) if name and _codes(inspection, name)), None
    )
    if quantised is not None:
        return unknown(f"{shown(quantised)} is stored as quantised codes")
    return None


def class_name(inspection: Inspection) -> str:
    """The class of the model as the object of a sentence."""
    return shown(inspection.family.architecture) or "a model whose config names no class"


def _halves_apart(inspection: Inspection) -> bool:
    """Whether the config gives the encoder and the decoder a table each, as Marian's can."""
    shared = text_config(inspection).get("share_encoder_decoder_embeddings", True)
    return not shared and inspection.family.text_type in release_tables.names("transformers-5", "halves apart")


def _codes(inspection: Inspection, name: str) -> bool:
    tensors = inspection.checkpoint.tensors
    return quantised_twin(in_file(inspection, name), tensors) is not None


def wrong_format(inspection: Inspection, loader: str, formats: Iterable[str]) -> Verdict | None:
    """The verdict for files that the loader does not look for; ``None`` where it reads them."""
    checkpoint, readable = inspection.checkpoint, tuple(formats)
    if checkpoint.format not in readable:
        return error(f"{loader} reads {' and '.join(readable)} files, not {shown(checkpoint.format)}")
    if checkpoint.layout is Layout.FILE:
        return unknown(f"{loader} loads a model's directory, not a lone file")
    return None


def in_file(inspection: Inspection, name: str) -> str:
    """The name under which the file holds a tensor, or would hold it."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    return locate(family, name, tensors) or spelled(family, name, tensors)


def pair(inspection: Inspection) -> Pair | None:
    """The embedding and the head; ``None`` where the table does not name both."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    if family.input_embedding is None or family.output_head is None:
        return None
    embedding, head = in_file(inspection, family.input_embedding), in_file(inspection, family.output_head)
    both = embedding in tensors and head in tensors
    same = _same(inspection, embedding, head) if both else None
    return Pair(embedding, head, embedding in tensors, head in tensors, same)


def _same(inspection: Inspection, embedding: str, head: str) -> bool | None:
    members = {member.name: member for tie in inspection.ties for member in tie.members}
    if embedding not in members or head not in members:
        return None
    first, second = members[embedding], members[head]
    if State.CANONICAL not in (first.state, second.state):
        return None
    return same(second if first.state is State.CANONICAL else first)


def same(member: Member) -> bool | None:
    """Whether a stored member holds the values of its group's reference as far as any logit can tell."""
    match member.state:
        case State.CANONICAL | State.ALIASED | State.IDENTICAL:
            return True
        case State.UNREAD | State.ABSENT | State.CAST:
            return None
        case State.TRANSPOSED | State.SCALED | State.NEAR | State.DISTINCT:
            return member.relation.sign_of_zero_only
        case _:
            assert_never(member.state)


def flags_agree(inspection: Inspection) -> bool | None:
    """The flag where every level of the config that could hold one declares the same value; else ``None``."""
    found = [entry.value for entry in inspection.config.declared]
    for flag in (True, False):
        if found and all(value is flag for value in found):
            return flag
    return None


def class_bias(inspection: Inspection) -> tuple[str, ...]:
    """The stored head bias, where its values may matter: it is not all zero."""
    bias = inspection.head.output_bias
    if bias is None or bias.state in (BiasState.ABSENT, BiasState.ZERO):
        return ()
    return (bias.name,)


def stored_bias(inspection: Inspection) -> tuple[str, ...]:
    """The stored head bias, whatever it holds."""
    bias = inspection.head.output_bias
    return () if bias is None or bias.state is BiasState.ABSENT else (bias.name,)


# --- phrases ---------------------------------------------------------------------------------------------


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    every = [shown(name) for name in names]
    return " and ".join(filter(None, (", ".join(every[:-1]), *every[-1:])))


def without(detail: str, dropped: tuple[str, ...]) -> str:
    """``detail``, and which biases are not used."""
    if not dropped:
        return detail
    return f"{detail}; {listed(dropped)} {'is' if len(dropped) == 1 else 'are'} not used"


def tied(found: Pair) -> str:
    """That the head takes the embedding's values."""
    return f"{shown(found.head)} is {shown(found.embedding)}"


def separate(found: Pair) -> str:
    """That each is its own parameter."""
    return f"{shown(found.head)} and {shown(found.embedding)} are loaded as two parameters"


def verdict(outcome: Outcome, detail: str, tensors: Iterable[str] = (), dropped: tuple[str, ...] = ()) -> Verdict:
    """A verdict whose detail says too what becomes of the biases."""
    return Verdict(outcome, without(detail, dropped), tuple(tensors), dropped)
