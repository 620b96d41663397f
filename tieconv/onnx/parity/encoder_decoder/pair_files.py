"""Find the graphs of an encoder-decoder in a directory, by the names that optimum and transformers.js use."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tieconv.checkpoint.value_type import record

ENCODER, DECODER = "encoder_model", "decoder_model_merged"
"""The graphs that `tieconv export` writes, without the extension."""
FIRST, STEP = "decoder_model", "decoder_with_past_model"
"""optimum's decoders: for the first tokens, and for a token after a past."""


@record
class PairFiles:
    """The paths of an encoder, of the decoder for the first tokens, and of the decoder for the later steps."""

    encoder: str
    first: str
    step: str


def pair_files(path: str) -> PairFiles | None:
    """Return the graphs in the directory ``path`` or in its folder `onnx`; ``None`` without a whole pair.

    fp16 graphs of transformers.js have names that end in `_fp16`. A merged decoder comes before two decoders.
    """
    return next(_pairs(path), None) if os.path.isdir(path) else None


def _pairs(path: str) -> Iterator[PairFiles]:
    for folder in (path, os.path.join(path, "onnx")):
        for suffix in ("", "_fp16"):
            for first, step in ((DECODER, DECODER), (FIRST, STEP)):
                names = [os.path.join(folder, f"{stem}{suffix}.onnx") for stem in (ENCODER, first, step)]
                if all(map(os.path.isfile, names)):
                    yield PairFiles(*names)
