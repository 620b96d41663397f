"""Get the tokens on which perplexity is measured: of a file that the user gives, else sampled from the reference."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.value_type import record
from tieconv.errors import MALFORMED, UnreadableError
from tieconv.formats.handed_in import parse_json
from tieconv.reference import Batch, Reference
from tieconv.reference.windows import load_tokenizer
from tieconv.sources.user_files import decode, read_bytes
from tieconv.text import count, shown

WINDOW = 64
"""Most tokens that the model reads at once."""
WINDOWS = 16
"""Most windows of a file. They are taken at even distances."""
_SAMPLES, _SAMPLED = 8, 32


@record
class Tokens:
    """Windows of token ids (n × length), and a phrase that says where they are from."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    ids: torch.Tensor
    source: str

    @property
    def predicted(self) -> int:
        """The number of tokens that are predicted."""
        return int(self.ids.shape[0] * (self.ids.shape[1] - 1))


def read_tokens(path: str, directory: str, rows: int, longest: int) -> Tokens:
    """Return windows of the text or token file ``path``.

    A `.npy` or `.json` file holds ids; any other file is a text for the tokenizer in ``directory``. ``rows`` is the
    size of the vocabulary, ``longest`` the model's limit. Raises `UnreadableError` if the file holds too few ids, or an
    id that the model does not have.
    """
    ids = _ids(path, directory)
    length = min(WINDOW, longest)
    whole = len(ids) // length
    if not whole:
        raise _unreadable(path, f"holds {count(len(ids), 'token')}, but at least {length} are needed")
    if ids.min() < 0 or ids.max() >= rows:
        raise _unreadable(path, f"holds the id {int(ids.max())}, but the model has {rows:,} tokens")
    windows = torch.from_numpy(ids[: whole * length].astype(np.int64)).reshape(whole, length)
    chosen = torch.linspace(0, whole - 1, min(WINDOWS, whole)).long()
    return Tokens(windows[chosen], os.path.basename(path))


def sample_tokens(reference: Reference, rows: int, longest: int) -> Tokens:
    """Return sequences that the reference itself generates at random, with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, rows, (_SAMPLES, 1), generator=generator)
    for _ in range(min(_SAMPLED, longest) - 1):
        logits = reference.logits(Batch(ids, torch.ones_like(ids)))[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.double().softmax(-1), 1, generator=generator)], 1)
    return Tokens(ids, "tokens sampled from the reference")


def batches(tokens: Tokens) -> list[Batch]:
    """Return a batch for each window."""
    return [Batch(window[None], torch.ones_like(window)[None]) for window in tokens.ids]


def nats(batch: Batch, logits: torch.Tensor) -> float:
    """Return the summed negative log-likelihood of the batch's tokens after the first."""
    log = logits[:, :-1].double().log_softmax(-1)
    return float(-log.gather(-1, batch.ids[:, 1:, None]).sum())


def _ids(path: str, directory: str) -> Any:
    data = read_bytes(path)
    try:
        if path.endswith(".npy"):
            return np.load(io.BytesIO(data), allow_pickle=False).astype(np.int64).reshape(-1)
        if path.endswith(".json"):
            ids = parse_json(data, len(data))
        else:
            text = decode(data, path)
            ids = load_tokenizer(directory)(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.asarray(ids, dtype=np.int64).reshape(-1)
    except (*MALFORMED, EOFError, MemoryError) as error:
        raise _unreadable(path, f"cannot be read as tokens: {shown(str(error), 200)}") from error


def _unreadable(path: str, why: str) -> UnreadableError:
    return UnreadableError(f"{shown(path)} {why}", "give a text, or ids as .npy or .json: --text FILE", "parity.text")
