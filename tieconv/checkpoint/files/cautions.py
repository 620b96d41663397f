"""Ambiguous or misplaced content that a reader reports, as codes that a rule turns into findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.value_type import record
from tieconv.text import command

if TYPE_CHECKING:
    pass


@record
class Caution:
    """An ambiguity or a misplaced file that a reader reports; a rule turns it into a finding."""

    code: str
    message: str
    tensors: tuple[str, ...] = ()


TWO_FORMATS = "layout.two-formats"
"""The code of the caution that the directory has weights in two formats."""

REFUSED_BY_READER = "format.refused"
"""The code of the caution that the format's own reader refuses a file; the finding repeats its message."""

NOT_ALONE = "layout.not-alone"
"""The code of the caution that other files beside a lone weight file hold the model too."""

TRAINING = "torch.training"
"""The code of the caution that a torch file holds a model and its training state; `convert` takes the model."""

SEVERAL = "torch.several"
"""The code of the caution that a torch file has tensors under several keys, and none is certainly the model."""

BLOCKING = {
    "layout.ambiguous": "remove the unwanted one, then run the command again",
    "layout.one-shard": "give the model's directory",
    TWO_FORMATS: "add --drop-other-formats to leave out the other format, which tieconv would not update",
    "index.absent": "write the index first: tieconv reindex MODEL",
    "index.absent-tensor": "rebuild the index from the shards, then try again: tieconv reindex MODEL",
    "index.extra-tensor": "rebuild the index from the shards, then try again: tieconv reindex MODEL",
    "index.repeated": "remove the unwanted copy, then run the command again",
    TRAINING: "extract the model first: tieconv convert MODEL --to safetensors -o OUT",
    SEVERAL: 'save the model\'s part first: torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)',
    "torch.extra": "save only the tensors first: tieconv would lose the other contents of the file",
}
"""Cautions that leave open what the model is, so that tieconv writes nothing; and the hint for each."""


def way_out(code: str, source: str) -> str:
    """Return what to do about a blocking caution of the model ``source``."""
    hint = BLOCKING[code].replace("tieconv reindex MODEL", command("reindex", source))
    return hint.replace("tieconv convert MODEL", command("convert", source))
