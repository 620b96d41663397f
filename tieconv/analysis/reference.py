"""The checkpoint as a torch model whose two tables can be exchanged. The only module that imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import Table
from tieconv.errors import RefusedError, UnreadableError
from tieconv.text import shown

WINDOW = 128
"""Tokens that are read at once; the predictions are those of all but the first."""

WINDOWS = 32
"""Windows that are taken from the text, spread over it evenly."""

LEAST = 256
"""Predicted tokens below which nothing is claimed."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A model in float32 on the CPU, its tables apart, and the windows of the text: (n, `WINDOW`) ids."""

    torch: Any
    model: Any
    embed: Any
    head: Any
    windows: Any

    @property
    def predicted(self) -> int:
        """Tokens that are predicted over all windows."""
        return int(self.windows.shape[0] * (self.windows.shape[1] - 1))

    def logits(self, window: Any) -> Any:
        """(tokens − 1, V) float32: the predictions of one window, without those after its last token."""
        given = {"input_ids": window[None], "attention_mask": self.torch.ones_like(window[None])}
        return self.model(**given, use_cache=False).logits[0, :-1].float()

    def log_probabilities(self, window: Any) -> Any:
        return self.torch.log_softmax(self.logits(window), -1)

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


def load_reference(subject: Subject, text: str) -> Reference:
    """The model of a directory by transformers, no code of its own run, its tables as they are stored.

    Raises `RefusedError` where torch or transformers is missing or the class is none that predicts the next token,
    `UnreadableError` where model or tokenizer cannot be loaded or the text is too short.
    """
    torch, transformers = _frameworks()
    root = subject.evidence.checkpoint.root
    windows = _windows(torch, _encode(transformers, root, text))
    model = _model(torch, transformers, subject, root)
    embed = _parameter(torch, subject.embed)
    head = _parameter(torch, subject.output)
    if model.get_input_embeddings().weight.shape != embed.shape or model.get_output_embeddings() is None:
        raise RefusedError(
            f"{shown(root)}: the model that transformers builds has other tables than the checkpoint stores",
            "analyse it without --text",
            "analyze.tables",
        )
    reference = Reference(torch, model, embed, head, windows)
    model.get_input_embeddings().weight = embed
    model.get_output_embeddings().weight = head
    return reference


def _frameworks() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise RefusedError(
            f"--text runs the model, and {error.name or 'torch'} is not installed",
            'install it: pip install "tieconv[torch]"',
            "analyze.torch",
        ) from error
    return torch, transformers


def _model(torch: Any, transformers: Any, subject: Subject, root: str) -> Any:
    architecture = subject.evidence.family.architecture
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise RefusedError(
            f"{shown(architecture or root)} does not predict the next token, which is what --text measures",
            "analyse it without --text",
            "analyze.not-causal",
        )
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            root, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise UnreadableError(
            f"{shown(root)} cannot be loaded by transformers: {shown(error)}",
            "analyse it without --text",
            "analyze.load",
        ) from error
    return model.eval().requires_grad_(False)


def _encode(transformers: Any, root: str, text: str) -> list[int]:
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(root, local_files_only=True, trust_remote_code=False)
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    except Exception as error:
        raise UnreadableError(
            f"{shown(root)}: its tokenizer cannot be loaded by transformers: {shown(error)}",
            "put tokenizer.json and tokenizer_config.json beside the weights",
            "analyze.tokenizer",
        ) from error
    return ids


def _windows(torch: Any, ids: list[int]) -> Any:
    length = min(WINDOW, len(ids))
    whole = len(ids) // length if length else 0
    if whole * (length - 1) < LEAST:
        raise UnreadableError(
            f"the text has {len(ids):,} tokens, too few to measure anything by",
            f"give a text of some {WINDOW * WINDOWS:,} tokens; the least is {LEAST + WINDOW:,}",
            "analyze.text-short",
        )
    rows = torch.tensor(ids[: whole * length]).reshape(whole, length)
    if whole <= WINDOWS:
        return rows
    return rows[torch.linspace(0, whole - 1, WINDOWS).long()]


def _parameter(torch: Any, table: Table) -> Any:
    values = table.values(0, table.rows).astype("f4")
    return torch.nn.Parameter(torch.from_numpy(values), requires_grad=False)
