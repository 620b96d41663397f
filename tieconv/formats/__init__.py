"""The formats that are read, and the choice among them."""

from __future__ import annotations

from dataclasses import replace

from tieconv.checkpoint.records import Caution, Checkpoint, Files, Listing
from tieconv.errors import UnreadableError
from tieconv.formats.dcp_model import DCP
from tieconv.formats.gguf_model import GGUF
from tieconv.formats.interface import Format
from tieconv.formats.peft import PEFT
from tieconv.formats.safetensors_model import SAFETENSORS
from tieconv.formats.torch_model import NAMING as TORCH_NAMING
from tieconv.formats.torch_model import TORCH
from tieconv.text import shown

FORMATS: tuple[Format, ...] = (PEFT, SAFETENSORS, GGUF, DCP, TORCH)

_WHOLE_MODELS: tuple[Format, ...] = (SAFETENSORS, GGUF, TORCH)
"""Formats of which one directory should hold one; an adapter's or a training run's files are another matter."""

GRAPH_SUFFIX = ".onnx"

_KNOWN_ELSEWHERE = {
    (".ckpt",): "a checkpoint of a training run",
    (".h5", ".msgpack"): "a Keras or Flax checkpoint",
    (".npz", ".npy"): "a numpy archive",
}


def read_checkpoint(listing: Listing, files: Files) -> Checkpoint:
    """The checkpoint that MODEL names, by the first format that claims it; `UnreadableError` where none does."""
    claims = [candidate for candidate in FORMATS if candidate.claims(listing)]
    if not claims:
        raise _unclaimed(listing, files)
    checkpoint = claims[0].read(listing, files)
    wholes = [candidate for candidate in claims if candidate in _WHOLE_MODELS and _holds_model(candidate, listing)]
    if listing.named or len(wholes) < 2 or claims[0] not in wholes:
        return checkpoint
    return replace(checkpoint, cautions=(*checkpoint.cautions, _two_formats(wholes)))


def holds_graphs(listing: Listing) -> bool:
    """Whether MODEL is an ONNX graph, or a directory of graphs without weights that another format reads."""
    if listing.named is not None:
        return listing.named.lower().endswith(GRAPH_SUFFIX)
    if not any(name.lower().endswith(GRAPH_SUFFIX) for name in listing.entries):
        return False
    return not any(candidate.claims(listing) and _holds_model(candidate, listing) for candidate in FORMATS)


def _holds_model(candidate: Format, listing: Listing) -> bool:
    """A stray `.pt` is no model: of torch files those count that loaders look for by name."""
    if candidate is not TORCH:
        return True
    return not {TORCH_NAMING.single, TORCH_NAMING.index}.isdisjoint(listing.top)


def _two_formats(claims: list[Format]) -> Caution:
    """Weights of two formats side by side may be two models; which one is read depends on the loader."""
    read, *others = (candidate.name for candidate in claims)
    rest = " and ".join(others)
    return Caution(
        "layout.two-formats",
        f"weights stand here as {read} and as {rest}: transformers takes {read}, other loaders can take {rest}, "
        "and the two may be different models",
    )


def _unclaimed(listing: Listing, files: Files) -> UnreadableError:
    names = (listing.named,) if listing.named else listing.top
    for suffixes, kind in _KNOWN_ELSEWHERE.items():
        match = next((name for name in names if name.lower().endswith(suffixes)), None)
        if match:
            return UnreadableError(
                f"{shown(match)} is {kind}, which this version does not read",
                "save the model as safetensors first",
                "format.unsupported",
            )
    graph = next((name for name in names if name.lower().endswith(GRAPH_SUFFIX)), None)
    if graph:
        return UnreadableError(
            f"{shown(graph)} is an ONNX graph, which this command does not take",
            "tieconv dedup and tieconv untie take graphs",
            "format.unsupported",
        )
    what = "is no weight file" if listing.named else "holds no weight file"
    special = next((name for name in listing.special if "/" not in name and name.endswith(".safetensors")), None)
    if special and not listing.named:
        files.state(special)  # says what is wrong with it
    return UnreadableError(
        f"{shown(listing.source)} {what}", "give a model directory, a weight file or an index", "format.none"
    )
