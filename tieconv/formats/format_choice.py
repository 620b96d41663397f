"""Choose the format of a checkpoint when more than one is possible."""

from __future__ import annotations

import os
from dataclasses import replace

from tieconv.checkpoint.model_files import Checkpoint, Files, Listing
from tieconv.errors import UnreadableError
from tieconv.formats import shards
from tieconv.formats.directory import Format
from tieconv.formats.gguf import GGUF
from tieconv.formats.limits import DCP_METADATA, DCP_SHARD, DCP_SUFFIX
from tieconv.formats.other_tools import WINDOW, by_content, by_directory, by_name
from tieconv.formats.safetensors import SAFETENSORS
from tieconv.formats.torch import TORCH, check_slices, is_trainer_state
from tieconv.text import Hint, call, count, path_word, shown


# Recognise a torch distributed checkpoint (DCP). `tieconv.formats.dcp` reads it.
def _claims(listing: Listing) -> bool:
    if listing.named:
        return listing.named == DCP_METADATA or listing.named.endswith(DCP_SUFFIX)
    return any(entry.endswith(DCP_SUFFIX) or DCP_SHARD.fullmatch(entry) for entry in listing.top)


def _read(listing: Listing, files: Files) -> Checkpoint:
    from tieconv.formats.dcp import read_directory  # imports the pickle interpreter, which few formats need

    return read_directory(listing, files)


DCP = Format("dcp", _claims, _read)


FORMATS: tuple[Format, ...] = (shards.PEFT, SAFETENSORS, GGUF, DCP, TORCH)


_BESIDE_WEIGHTS = ("config.json", "tokenizer.json", "special_tokens_map.json", "vocab.json")
"""Suffixes of files that lie beside weights and hold no weights."""


def choose(listing: Listing, files: Files) -> Checkpoint:
    """Read the checkpoint that MODEL names, in the format that loaders prefer. MODEL is not an ONNX graph.

    Raises `UnreadableError` if there is no checkpoint.
    """
    claims = [candidate for candidate in FORMATS if candidate.claims(listing)]
    if not claims and listing.named is not None:
        start = files.pread(listing.named, WINDOW, 0)
        claims = [TORCH] if start.startswith((b"PK", b"\x80")) else []  # a zip archive or a pickle of any suffix
    if not listing.named and not shards.holds_model(TORCH, listing) and set(claims) <= {TORCH}:
        # Raise the error of a directory in which a trainer keeps the model in parts, or below another directory.
        kind = by_directory(listing.entries)
        if kind is not None:
            raise UnreadableError(f"{shown(listing.source)} {kind.sentence_end}", kind.hint, "format.unsupported")
        folders = _distributed_below(listing)
        if folders:
            folder = folders[0]
            problem = f"{shown(listing.source)} holds a distributed checkpoint in {shown(folder)}"
            hint = f"give its directory: {path_word(os.path.join(listing.source, folder))}"
            raise UnreadableError(problem, hint, "format.below")
    if not claims or (listing.named and is_trainer_state(listing.named)):
        raise _unclaimed(listing, files)
    chosen = shards.preferred(claims, listing)
    if chosen is TORCH:
        check_slices(listing)
    checkpoint = chosen.read(listing, files)
    others, cautions = shards.others(chosen, listing, files)
    if not cautions:
        return checkpoint
    twins = shards.twins(chosen, listing, files) if others else ()
    return replace(checkpoint, others=others, twins=twins, cautions=(*checkpoint.cautions, *cautions))


def model_below(listing: Listing) -> str | None:
    """Return the one directory below MODEL with a distributed model, as FSDP of accelerate writes it; ``None`` if not.

    MODEL has no weights outside it.
    """
    folders = [] if listing.named or by_directory(listing.entries) else _distributed_below(listing)
    alone = len(folders) == 1 and not any(candidate.claims(listing) for candidate in FORMATS)
    return folders[0] if alone else None


def _distributed_below(listing: Listing) -> list[str]:
    """Return the directories with a distributed checkpoint. Returns those of an optimizer only without any other."""
    folders = [os.path.dirname(name) for name in listing.entries if name.endswith(f"/{DCP_METADATA}")]
    return [name for name in folders if not os.path.basename(name).startswith("optim")] or folders


def holds_weights(listing: Listing) -> bool:
    """Return whether a directory holds weights that loaders look for by name. A stray `.pt` file is not a model."""
    return any(candidate.claims(listing) and shards.holds_model(candidate, listing) for candidate in FORMATS)


def _unclaimed(listing: Listing, files: Files) -> UnreadableError:
    # The path is that of the weights inside a Core ML package.
    packed = (name for name in listing.entries if name.endswith("com.apple.CoreML/weights/weight.bin"))
    names = (listing.named,) if listing.named else (*listing.top, *packed)
    for name in names:
        kind = by_name(name)
        if listing.named or kind:
            kind = by_content(files.pread(name, WINDOW, 0)) or kind
        if kind:
            return UnreadableError(f"{shown(name)} {kind.sentence_end}", kind.hint, "format.unsupported")
    states = [name for name in names if is_trainer_state(name)]
    if states:
        verb = "is" if len(states) == 1 else f"and {count(len(states) - 1, 'more file')} are"
        problem = f"{shown(states[0])} {verb} a trainer's state, not a model"
        return UnreadableError(problem, "give the directory that holds the weights", "format.trainer")
    if listing.named and listing.named.endswith(_BESIDE_WEIGHTS):
        folder = path_word(os.path.dirname(listing.source) or ".")
        problem = f"{shown(listing.source)} describes a model but holds no weights"
        return UnreadableError(problem, f"give the model's directory: {folder}", "format.beside-weights")
    problem = "is not a weight file" if listing.named else "holds no weight file"
    special = next((name for name in listing.special if "/" not in name and name.endswith(".safetensors")), None)
    if special and not listing.named:
        files.state(special)  # raises the error of this file
    hint = "give a model directory, a weight file or an index"
    if any(name.endswith("/config.json") for name in listing.entries):
        hint = Hint("check the models below it: ", call("check", listing.source))
    return UnreadableError(f"{shown(listing.source)} {problem}", hint, "format.none")
