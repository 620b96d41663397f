"""Read the state dict of a torch file, a ZIP archive or a legacy file, without running its pickle."""

from __future__ import annotations

import re

from tieconv.checkpoint.model_files import Caution, Files, Listing
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.directory import Model, Naming

# Read a model stored by `torch.save`: one file, or shards and their index.

SUFFIXES = (".bin", ".pt", ".pth", ".th", ".ckpt")
_STATES = "training_args|optimizer|scheduler|scaler|sampler|rng_state|random_states"
"""Files that trainers write beside the weights: transformers' `Trainer`, accelerate and DeepSpeed."""


def _read_one(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    from tieconv.formats.torch.reader import read_torch_file  # other formats do not need it

    size = files.state(name).size
    sparse = bool(getattr(files, "costly", False))
    stored_model = read_torch_file(lambda count, offset: files.pread(name, count, offset), size, name, sparse=sparse)
    expect = getattr(files, "expect", None)  # local files can check the CRC-32 of what they read
    if expect is not None:
        expect(stored_model[:1])
    return stored_model


def check_slices(listing: Listing) -> None:
    """Raise `UnreadableError` for the files of a model-parallel model: each holds a part of every matrix.

    Beside a model that loaders look for by name, they are not read.
    """
    slices = [name for name in listing.top if re.fullmatch(r"consolidated\.\d+\.pth", name)]
    whole = listing.named is None and not {_SINGLE, f"{_SINGLE}.index.json"}.isdisjoint(listing.top)
    if len(slices) < 2 or whole or listing.named not in (None, *slices):
        return
    hint = "join them first with convert_llama_weights_to_hf.py of transformers 4"
    raise UnreadableError(f"{slices[0]} to {slices[-1]} are slices of one model-parallel model", hint, "torch.slices")


def is_trainer_state(name: str) -> bool:
    """Return whether trainers use this name for a file that never holds a model."""
    return re.fullmatch(rf"({_STATES})([_-]\d+)*\.\w+|(bf16_)?zero_pp_rank_\d+_.*", name) is not None


_SINGLE = "pytorch_model.bin"
_SHARD = r"-\d{5}-of-\d{5}\.(bin|pt|pth|th|ckpt)$"
_OTHERS = rf"^({_STATES}|dist_|openvino_|(bf16_)?zero_pp_rank_)[^/]*$"
TORCH = Model.of(Naming("torch", "torch file", _SINGLE, SUFFIXES, _SHARD, _OTHERS), _read_one)
