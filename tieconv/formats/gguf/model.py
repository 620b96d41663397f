"""Read a model stored as GGUF: one file, or the numbered parts that `llama-gguf-split` writes. Read only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Checkpoint, Layout, Listing
from tieconv.checkpoint.files.weight_file import WeightFile
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats.gguf.reader import SUFFIX, read_weight_file
from tieconv.text import count, listed, path_word, shown

NEXT_STEP = "change the original model, then convert it to GGUF again"

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf$")


@record
class GgufModel:
    """The GGUF format; see `tieconv.formats.interface.Format`."""

    name: str = "gguf"

    def claims(self, listing: Listing) -> bool:
        names = (listing.named,) if listing.named else listing.top
        return any(name.endswith(SUFFIX) for name in names)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        names = _parts(listing, listing.named or _the_one(listing))
        weights = tuple(_read_one(files, name) for name in names)
        whole = listing.named is None
        layout = Layout.SHARDED if len(names) > 1 else Layout.SINGLE if whole else Layout.FILE
        return Checkpoint(
            source=listing.source,
            root=listing.root,
            layout=layout,
            format=self.name,
            files=weights,
            companions={name: size for name, size in listing.entries.items() if name not in names} if whole else {},
            special=listing.special if whole else (),
            cautions=_repeated(weights),
            states={name: files.state(name) for name in names},
            read_only=NEXT_STEP,
        )


def _the_one(listing: Listing) -> str:
    """Return the model file of a directory, or the first of its parts."""
    models = models_among(listing.top)
    if len(models) == 1:
        return models[0]
    raise UnreadableError(
        f"{shown(listing.source)} holds {count(len(models), 'GGUF model')}: {listed(models)}",
        f"give the path of one of them: {path_word(os.path.join(listing.source, models[0]))}",
        "layout.ambiguous",
    )


def models_among(names: Iterable[str]) -> tuple[str, ...]:
    """Return the GGUF models among the file ``names`` of a directory. A split model is named by its first part.

    The projectors of vision models (`mmproj-*`) do not count beside a model.
    """
    stored = sorted(name for name in names if name.endswith(SUFFIX))
    models = [name for name in stored if "mmproj" not in name.lower()] or stored
    return tuple({_stem(name): name for name in reversed(models)}.values())[::-1]


def _stem(name: str) -> str:
    match = _PART.match(name)
    return f"{match['stem']}-of-{match['total']}" if match else name


def _parts(listing: Listing, name: str) -> tuple[str, ...]:
    """Return all parts of a split file, given the name of one part."""
    match = _PART.match(name)
    if match is None:
        return (name,)
    total = int(match["total"])
    names = tuple(sorted(entry for entry in listing.top if _stem(entry) == _stem(name)))
    if len(names) != total:
        raise UnreadableError(
            f"{shown(name)} is one of {total:,} parts, but the directory holds {len(names):,}",
            "fetch the missing parts, or join them with llama-gguf-split --merge",
            "gguf.absent-part",
        )
    return names


def _read_one(files: Files, name: str) -> WeightFile:
    sparse = bool(getattr(files, "costly", False))
    size = files.state(name).size
    return read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name, sparse=sparse)


def _repeated(weights: tuple[WeightFile, ...]) -> tuple[Caution, ...]:
    homes: dict[str, int] = {}
    for file in weights:
        for tensor in file.tensors:
            homes[tensor.name] = homes.get(tensor.name, 0) + 1
    repeated = tuple(name for name, number in homes.items() if number > 1)
    if not repeated:
        return ()
    message = f"{listed(repeated, 3)} {'is' if len(repeated) == 1 else 'are'} stored in more than one part"
    return (Caution("index.repeated", message, repeated),)


GGUF = GgufModel()
