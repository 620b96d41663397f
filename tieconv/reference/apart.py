"""A model that predicts the next token, its two tables apart and exchangeable, and the windows of a text for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tieconv.errors import RefusedError, UnreadableError
from tieconv.reference.model import Batch, Reference, load
from tieconv.reference.packages import need, require
from tieconv.text import count, shown

WINDOW = 128
"""Tokens that are read at once; the predictions are those of all but the first."""

WINDOWS = 32
"""Windows that are taken from the text, spread over it evenly."""

LEAST = 256
"""Predicted tokens below which nothing is claimed."""

_EXTRA, _PURPOSE = "torch", "--text, which runs the model,"


@dataclass(frozen=True, slots=True)
class Apart:
    """A model in float32 on the CPU, its tables (V, d) apart, and the text.

    ``windows`` are those that the model reads, (n, `WINDOW`) ids; ``counts`` how often each id stands in the whole
    text, (V,).
    """

    reference: Reference
    embed: Any
    head: Any
    windows: Any
    counts: Any

    @property
    def torch(self) -> Any:
        """The package, for rooms that do not import it."""
        return need("torch", _EXTRA, _PURPOSE)

    @property
    def model(self) -> Any:
        return self.reference.model

    @property
    def predicted(self) -> int:
        """Tokens that are predicted over all windows."""
        return int(self.windows.shape[0] * (self.windows.shape[1] - 1))

    def log_probabilities(self, window: Any) -> Any:
        """(tokens − 1, V) float32: the predictions of one window, without those after its last token."""
        ids = window[None]
        logits = self.reference.forward(Batch(ids, ids.new_ones(ids.shape)))[0, :-1]
        return logits.float().log_softmax(-1)

    @contextmanager
    def tables(self, embed: Any, head: Any) -> Iterator[None]:
        """The model with these tables in place of its own."""
        modules = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        kept = [module.weight for module in modules]
        for module, weight in zip(modules, (embed, head), strict=True):
            module.weight = weight
        try:
            yield
        finally:
            for module, weight in zip(modules, kept, strict=True):
                module.weight = weight


def load_apart(directory: str, architecture: str, tables: tuple[Any, Any], text: str) -> Apart:
    """The model of ``directory``, no code of its own run, with ``tables`` (two float arrays, V × d) as its own.

    Raises `MissingPackageError` where torch or transformers is missing, `RefusedError` where the class does not predict
    the next token or has other tables, `UnreadableError` where model or tokenizer cannot be loaded or the text is too
    short.
    """
    require(_PURPOSE, _EXTRA, "torch", "transformers")
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise RefusedError(
            f"{shown(architecture or directory)} does not predict the next token, which is what --text measures",
            "analyse it without --text",
            "analyze.not-causal",
        )
    ids = _encode(directory, text)
    windows = _windows(ids)
    counts = _counts(directory, ids, min(map(len, tables)))
    reference = load(directory, {"architectures": [architecture]}, "float32")
    reference.model.requires_grad_(False)
    apart = Apart(reference, parameter(tables[0]), parameter(tables[1]), windows, counts)
    _exchange(directory, apart)
    return apart


def parameter(values: Any) -> Any:
    """A numpy array as a float32 parameter without a gradient."""
    torch = need("torch", _EXTRA, _PURPOSE)
    return torch.nn.Parameter(torch.from_numpy(values.astype("f4")), requires_grad=False)


def _exchange(directory: str, apart: Apart) -> None:
    ends = apart.model.get_input_embeddings(), apart.model.get_output_embeddings()
    if ends[1] is None or ends[0].weight.shape != apart.embed.shape:
        raise RefusedError(
            f"{shown(directory)}: the model that transformers builds has other tables than the checkpoint stores",
            "analyse it without --text",
            "analyze.tables",
        )
    ends[0].weight, ends[1].weight = apart.embed, apart.head


def _encode(directory: str, text: str) -> list[int]:
    transformers = need("transformers", _EXTRA, _PURPOSE)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    except Exception as error:
        why = shown(" ".join(str(error).split()), 200)
        raise UnreadableError(
            f"{shown(directory)}: its tokenizer cannot be loaded by transformers: {why}",
            "put tokenizer.json and tokenizer_config.json beside the weights",
            "analyze.tokenizer",
        ) from error
    return ids


def _counts(directory: str, ids: list[int], rows: int) -> Any:
    torch = need("torch", _EXTRA, _PURPOSE)
    if max(ids) >= rows:
        raise UnreadableError(
            f"{shown(directory)}: the tokenizer gives id {max(ids):,} for this text, and the tables have {rows:,} rows",
            "put the tokenizer that the model was trained with beside the weights",
            "analyze.tokenizer-rows",
        )
    return torch.bincount(torch.tensor(ids), minlength=rows)


def _windows(ids: list[int]) -> Any:
    """The windows that are read, (n, `WINDOW`) ids, no two alike: a text that repeats itself says a thing once."""
    torch = need("torch", _EXTRA, _PURPOSE)
    length = min(WINDOW, len(ids))
    whole = len(ids) // length if length else 0
    rows = list(dict.fromkeys(tuple(ids[place * length : (place + 1) * length]) for place in range(whole)))
    if len(rows) * (length - 1) < LEAST:
        why = f"the text has {count(len(ids), 'token')}"
        if len(rows) < whole:
            why += f" and repeats itself: {count(len(rows), 'window')} of {length} in place of {whole:,}"
        raise UnreadableError(
            f"{why}, too few to measure anything by",
            f"give a text of some {WINDOW * WINDOWS:,} tokens; the least is {LEAST + WINDOW:,}",
            "analyze.text-short",
        )
    if len(rows) > WINDOWS:
        rows = [rows[place] for place in torch.linspace(0, len(rows) - 1, WINDOWS).long().tolist()]
    return torch.tensor(rows)
