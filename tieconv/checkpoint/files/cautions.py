"""What a reader found ambiguous or out of place, as codes that a rule turns into findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.value_type import record
from tieconv.text import command

if TYPE_CHECKING:
    pass


@record
class Caution:
    """Something read that has two readings, or is out of place; a rule turns it into a finding."""

    code: str
    message: str
    tensors: tuple[str, ...] = ()


TWO_FORMATS = "layout.two-formats"
"""The code of the caution that weights of two formats stand side by side."""

REFUSED_BY_READER = "format.refused"
"""The code of the caution that the reader of the format itself refuses a file; its message is the finding's."""

NOT_ALONE = "layout.not-alone"
"""The code of the caution that the directory of a lone weight file holds the model in other files too."""

TRAINING = "torch.training"
"""The code of the caution that a torch file holds a model and the state of its training; `convert` takes the model."""

SEVERAL = "torch.several"
"""The code of the caution that a torch file holds tensors under several keys, and none of them is surely the model."""

BLOCKING = {
    "layout.ambiguous": "remove the one that is not meant, then try again",
    "layout.one-shard": "give the model's directory",
    TWO_FORMATS: "add --drop-other-formats, which leaves the other out: it would stay behind as it was",
    "index.absent": "write the index first: tieconv reindex MODEL",
    "index.absent-tensor": "rebuild the index from the shards, then try again: tieconv reindex MODEL",
    "index.extra-tensor": "rebuild the index from the shards, then try again: tieconv reindex MODEL",
    "index.repeated": "remove the copy that is not meant, then try again",
    TRAINING: "take the model out of it first: tieconv convert MODEL --to safetensors -o OUT",
    SEVERAL: 'save the model\'s part first: torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)',
    "torch.extra": "save the tensors alone first: what else the file holds would be lost",
}
"""Cautions under which nobody can say what the model is, so that nothing is written; and the way out."""


def way_out(code: str, source: str) -> str:
    """What to do about a blocking caution of the model ``source``."""
    hint = BLOCKING[code].replace("tieconv reindex MODEL", command("reindex", source))
    return hint.replace("tieconv convert MODEL", command("convert", source))
