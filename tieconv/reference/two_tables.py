"""Load a language model whose input and output table can be exchanged, with windows of a text for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError, UnreadableError
from tieconv.reference.model import Reference, load
from tieconv.reference.packages import need, require
from tieconv.reference.windows import EXTRA, PURPOSE, Reading, positions, reading_of
from tieconv.text import count, shown

WINDOW = 128
"""Tokens of the text that the model reads at once."""

WINDOWS = 32
"""Windows that are taken from the text, at even distances."""

LEAST = 256
"""Fewest predicted tokens from which figures are reported."""


@record
class Apart:
    """A model in float32 on the CPU with separate tables (V, d), and the text.

    ``tied`` lists what the class ties to the input table, for example the tables of an encoder and a decoder.
    ``reading`` says how a window is fed to the model. ``windows`` are the windows that the model reads: (n, `WINDOW`)
    ids, or fewer if the model has fewer positions. ``counts`` (V,) says how often each id occurs in the whole text.
    """

    reference: Reference
    tied: tuple[str, ...]
    reading: Reading
    embed: Any
    head: Any
    windows: Any
    counts: Any

    @property
    def torch(self) -> Any:
        """The package, for modules that do not import it."""
        return need("torch", EXTRA, PURPOSE)

    @property
    def model(self) -> Any:
        return self.reference.model

    @property
    def predicted(self) -> int:
        """Number of tokens that are predicted over all windows."""
        return int(self.windows.shape[0] * self.reading.predicted(self.windows.shape[1]))

    def log_probabilities(self, window: Any) -> Any:
        """Return the predictions of `targets` in one window, (n, V) float32."""
        fed = self.reading.fed(window)
        return self.reference.forward(fed.batch)[0, fed.places].float().log_softmax(-1)

    def targets(self, window: Any) -> Any:
        """Return the ids of a window that the model predicts, (n,)."""
        return self.reading.fed(window).targets

    def places(self, window: Any) -> Any:
        """Return an index of the predicted positions in the sequence that the head reads."""
        return self.reading.fed(window).places

    @contextmanager
    def tables(self, embed: Any, head: Any) -> Iterator[None]:
        """Put these tables into the model for the duration of the context.

        A model that ties its inputs reads ``embed`` at every input.
        """
        inputs, output = self._tied(), self.model.get_output_embeddings()
        weights = [(module, module.weight) for module in (*inputs, output)]
        _put(inputs, output, embed, head)
        try:
            yield
        finally:
            for module, weight in weights:
                module.weight = weight

    def _tied(self) -> list[Any]:
        """Return the modules that read the input table, or a table that the class ties to it."""
        named = ((module, f"{name}.weight") for name, module in self.model.named_modules())
        tied = [module for module, name in named if any(name.endswith((f".{suffix}", suffix)) for suffix in self.tied)]
        output = self.model.get_output_embeddings()
        return _inputs(self.model, [module for module in tied if module is not output])


def load_apart(
    directory: str, architecture: str, tables: tuple[Any, Any], text: str, tied: tuple[str, ...] = ()
) -> Apart:
    """Return the model in ``directory`` with ``tables``: two float arrays (V × d). No code from the checkpoint runs.

    ``tied`` are the names of the tensors that the class ties to the first table.

    Raises `MissingPackageError` if torch or transformers is missing. Raises `RefusedError` if the class predicts no
    tokens of a text, or has other tables. Raises `UnreadableError` if the model or the tokenizer cannot be loaded, or
    if the text is too short.
    """
    require(PURPOSE, EXTRA, "torch", "transformers")
    tokenizer = load_tokenizer(directory)
    reading = reading_of(directory, architecture, tokenizer)
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    places = positions(directory)
    windows = _windows(ids, reading, WINDOW if places is None else min(WINDOW, reading.longest(places)))
    counts = _counts(directory, ids, reading.added, min(map(len, tables)))
    reference = load(directory, {"architectures": [architecture]}, "float32")
    reference.model.requires_grad_(False)
    untied = Apart(reference, tied, reading, parameter(tables[0]), parameter(tables[1]), windows, counts)
    _exchange(directory, untied)
    _try(directory, untied)
    return untied


def _try(directory: str, untied: Apart) -> None:
    """Run one window. Raises `UnreadableError` if the class rejects the length of the window."""
    try:
        with untied.torch.inference_mode():
            untied.log_probabilities(untied.windows[0])
    except (UnreadableError, IndexError, RuntimeError, ValueError, TypeError) as error:
        why = error.__cause__ or error  # the forward pass blames the config, which may work for shorter texts
        raise UnreadableError(
            f"{shown(directory)}: the model cannot be run on {count(untied.windows.shape[1], 'token')} of text: "
            f"{shown(' '.join(str(why).split()), 200)}",
            "run analyze without --text",
            "analyze.run",
        ) from error


def parameter(values: Any) -> Any:
    """Return a numpy array as a float32 parameter without a gradient."""
    torch = need("torch", EXTRA, PURPOSE)
    return torch.nn.Parameter(torch.from_numpy(values.astype("f4")), requires_grad=False)


def _exchange(directory: str, untied: Apart) -> None:
    first, output = untied.model.get_input_embeddings(), untied.model.get_output_embeddings()
    if output is None or first.weight.shape != untied.embed.shape:
        raise RefusedError(
            f"{shown(directory)}: the model that transformers builds has other tables than the checkpoint stores",
            "run analyze without --text",
            "analyze.tables",
        )
    torch = untied.torch
    equal = [module for module in untied._tied() if torch.equal(module.weight, first.weight)]
    _put(_inputs(untied.model, equal), output, untied.embed, untied.head)


def _inputs(model: Any, more: list[Any]) -> list[Any]:
    """Return the modules that read the input table, and ``more``, each once."""
    first, output = model.get_input_embeddings(), model.get_output_embeddings()
    shared = [module for module in model.modules() if getattr(module, "weight", None) is first.weight]
    modules = [first, *(module for module in (*shared, *more) if module is not output)]
    return list({id(module): module for module in modules}.values())


def _put(inputs: list[Any], output: Any, embed: Any, head: Any) -> None:
    for module in inputs:
        module.weight = embed
    output.weight = head


def load_tokenizer(directory: str) -> Any:
    """Return the tokenizer in ``directory``. Raises `UnreadableError` if transformers cannot load it."""
    transformers = need("transformers", EXTRA, PURPOSE)
    try:
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        why = shown(" ".join(str(error).split()), 200)
        raise UnreadableError(
            f"transformers cannot load the tokenizer of {shown(directory)}: {why}",
            "put tokenizer.json and tokenizer_config.json beside the weights",
            "analyze.tokenizer",
        ) from error


def _counts(directory: str, ids: list[int], added: tuple[int, ...], rows: int) -> Any:
    torch = need("torch", EXTRA, PURPOSE)
    largest = max((*ids, *added))
    if largest >= rows:
        raise UnreadableError(
            f"{shown(directory)}: the tokenizer gives id {largest:,}, but the tables have only {rows:,} rows",
            "put the tokenizer that the model was trained with beside the weights",
            "analyze.tokenizer-rows",
        )
    return torch.bincount(torch.tensor(ids), minlength=rows)


def _windows(ids: list[int], reading: Reading, most: int) -> Any:
    """Return the windows that the model reads, (n, ``most`` or fewer) ids. Equal windows count once."""
    torch = need("torch", EXTRA, PURPOSE)
    if most < 1 or not reading.predicted(most):
        raise RefusedError(
            "the model has too few positions to predict a token of a text",
            "run analyze without --text",
            "analyze.short",
        )
    length, enough = min(most, len(ids)), max(WINDOWS, -(-LEAST // reading.predicted(most)))
    whole = len(ids) // length if length else 0
    rows = list(dict.fromkeys(tuple(ids[index * length : (index + 1) * length]) for index in range(whole)))
    if len(rows) * reading.predicted(length) < LEAST:
        why = f"the text has {count(len(ids), 'token')}"
        least = -(-LEAST // reading.predicted(most)) * most
        if len(rows) < whole:
            why += f" and repeats itself: {count(len(rows), 'different window')} of {length} tokens, not {whole:,}"
        raise UnreadableError(
            f"{why}, too few for a measurement",
            f"give a text of about {most * enough:,} tokens; at least {least:,} are needed",
            "analyze.text-short",
        )
    if len(rows) > enough:
        rows = [rows[index] for index in torch.linspace(0, len(rows) - 1, enough).long().tolist()]
    return torch.tensor(rows)
