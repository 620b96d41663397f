"""Feed a window of a text to a model, and choose which tokens it predicts: causal, masked or encoder-decoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError, UnreadableError
from tieconv.reference.model import Batch, Reference, load, load_config, load_whole_config
from tieconv.reference.packages import need, require
from tieconv.text import Hint, count, option, shown

EVERY = 7
"""A masked model predicts one of this many tokens: about the 15 % that BERT was trained with."""

_FROM_PADDING = ("roberta", "roberta-xl", "camembert", "mpnet", "data2vec-text", "longformer", "esm", "ibert")
"""Ends of model types that number positions from the padding token's id on."""

_POSITIONS = (
    "max_position_embeddings", "max_target_positions", "max_decoder_position_embeddings", "max_seq_len",
    "model_max_length",
)  # fmt: skip

EXTRA, PURPOSE = "torch", "--text, which runs the model,"
"""The extra that `--text` needs, and the purpose for the error message."""


@record
class Fed:
    """One window as the model gets it. ``places`` index the logits that predict the ids ``targets`` (n,)."""

    batch: Batch
    places: Any
    targets: Any


@record
class Causal:
    """Each token is predicted from those before it."""

    added: tuple[int, ...] = ()

    def fed(self, window: Any) -> Fed:
        return Fed(_batch(window), slice(0, -1), window[1:])

    def predicted(self, length: int) -> int:
        return length - 1

    def longest(self, places: int) -> int:
        return places


@record
class Masked:
    """Every seventh token is masked and predicted from all others. Special tokens begin and end the text."""

    mask: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    @property
    def added(self) -> tuple[int, ...]:
        return (self.mask, *self.prefix, *self.suffix)

    def fed(self, window: Any) -> Fed:
        places = need("torch", EXTRA, PURPOSE).arange(EVERY // 2, len(window), EVERY)
        masked = window.clone()
        masked[places] = self.mask
        return Fed(
            _batch(_joined(self.prefix, masked, self.suffix), placed=False), places + len(self.prefix), window[places]
        )

    def predicted(self, length: int) -> int:
        return len(range(EVERY // 2, length, EVERY))

    def longest(self, places: int) -> int:
        return places - len(self.prefix) - len(self.suffix)


@record
class EncoderDecoder:
    """The encoder reads the first half of a window, and the decoder predicts the second half."""

    start: int
    suffix: tuple[int, ...]

    @property
    def added(self) -> tuple[int, ...]:
        return (self.start, *self.suffix)

    def fed(self, window: Any) -> Fed:
        half = len(window) // 2
        read, targets = _joined((), window[:half], self.suffix), window[half:]
        batch = _batch(read)
        decoder = _joined((self.start,), targets[:-1], ())
        return Fed(Batch(batch.ids, batch.mask, decoder_ids=decoder[None]), slice(None), targets)

    def predicted(self, length: int) -> int:
        return length - length // 2

    def longest(self, places: int) -> int:
        return 2 * (places - len(self.suffix))


Reading = Causal | Masked | EncoderDecoder
"""How the model reads windows of ids, each one (length,) tensor.

``added`` are the ids that are added to those of the text. `fed` returns a window as a batch of one. `predicted` is how
many tokens of a window of a length are predicted. `longest` is the longest window of a model with so many positions.
"""


def reading_of(directory: str, architecture: str, tokenizer: Any) -> Reading:
    """Return how the class reads a text.

    Raises `RefusedError` if the class is not a language model, or if it lacks a token that the measurement needs.
    """
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return Causal()
    if architecture.endswith("ForMaskedLM"):
        if tokenizer.mask_token_id is None:
            raise _refusal(
                f"the tokenizer of {shown(directory)} has no mask token, which --text needs for {shown(architecture)}"
            )
        return Masked(tokenizer.mask_token_id, _ids(tokenizer.cls_token_id), _ids(tokenizer.sep_token_id))
    if architecture.endswith(("ForConditionalGeneration", "MTModel")):
        cls = getattr(need("transformers", EXTRA, PURPOSE), architecture, None)
        reads_ids = getattr(cls, "main_input_name", "input_ids") == "input_ids"  # and not sound or pictures
        config = load_whole_config(directory) if reads_ids else None
        if getattr(config, "is_encoder_decoder", False):
            start = getattr(config, "decoder_start_token_id", None)
            if start is None:
                raise _refusal(
                    f"the config of {shown(directory)} has no decoder_start_token_id, which the decoder starts with"
                )
            return EncoderDecoder(start, _ids(tokenizer.eos_token_id))
    raise _refusal(
        f"{shown(architecture or directory)} predicts no tokens of a text. --text needs a causal, masked or "
        "encoder-decoder language model"
    )


def positions(directory: str) -> int | None:
    """Return how many positions a model has, or ``None`` if its config does not say."""
    return position_limit(load_config(directory))


def position_limit(config: Any) -> int | None:
    """Return how many positions a model with this config has, or ``None`` if the config does not say.

    Of an encoder-decoder with two numbers, it is that of the decoder.
    """
    numbers = (getattr(config, name, None) for name in _POSITIONS)
    number = next((value for value in numbers if isinstance(value, int) and value > 0), None)
    if number is None:
        return None
    padding = getattr(config, "pad_token_id", None)
    counted = str(getattr(config, "model_type", "")).endswith(_FROM_PADDING)
    return number - padding - 1 if counted and isinstance(padding, int) else number


def _refusal(why: str) -> RefusedError:
    return RefusedError(why, Hint("run analyze without ", option("text")), "analyze.not-language")


def _ids(token: int | None) -> tuple[int, ...]:
    return () if token is None else (token,)


def _joined(before: tuple[int, ...], ids: Any, after: tuple[int, ...]) -> Any:
    return need("torch", EXTRA, PURPOSE).cat([ids.new_tensor(before), ids, ids.new_tensor(after)])


def _batch(ids: Any, *, placed: bool = True) -> Batch:
    return Batch(ids[None], ids.new_ones(1, len(ids)), placed=placed)


# Load a language model whose input and output table can be exchanged, with windows of a text for it.

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
    # Run one window.
    try:
        with untied.torch.inference_mode():
            untied.log_probabilities(untied.windows[0])
    except (UnreadableError, IndexError, RuntimeError, ValueError, TypeError) as error:
        why = error.__cause__ or error  # the forward pass blames the config, which may work for shorter texts
        problem = f"{shown(directory)}: the model cannot be run on {count(untied.windows.shape[1], 'token')} of text"
        hint = Hint("run analyze without ", option("text"))
        raise UnreadableError(f"{problem}: {shown(' '.join(str(why).split()), 200)}", hint, "analyze.run") from error
    return untied


def parameter(values: Any) -> Any:
    """Return a numpy array as a float32 parameter without a gradient."""
    torch = need("torch", EXTRA, PURPOSE)
    return torch.nn.Parameter(torch.from_numpy(values.astype("f4")), requires_grad=False)


def _exchange(directory: str, untied: Apart) -> None:
    first, output = untied.model.get_input_embeddings(), untied.model.get_output_embeddings()
    if output is None or first.weight.shape != untied.embed.shape:
        problem = f"{shown(directory)}: the model that transformers builds has other tables than the checkpoint stores"
        raise RefusedError(problem, Hint("run analyze without ", option("text")), "analyze.tables")
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
        problem = f"transformers cannot load the tokenizer of {shown(directory)}: {why}"
        hint = "put tokenizer.json and tokenizer_config.json beside the weights"
        raise UnreadableError(problem, hint, "analyze.tokenizer") from error


def _counts(directory: str, ids: list[int], added: tuple[int, ...], rows: int) -> Any:
    torch = need("torch", EXTRA, PURPOSE)
    largest = max((*ids, *added))
    if largest >= rows:
        problem = f"{shown(directory)}: the tokenizer gives id {largest:,}, but the tables have only {rows:,} rows"
        hint = "put the tokenizer that the model was trained with beside the weights"
        raise UnreadableError(problem, hint, "analyze.tokenizer-rows")
    return torch.bincount(torch.tensor(ids), minlength=rows)


def _windows(ids: list[int], reading: Reading, most: int) -> Any:
    """Return the windows that the model reads, (n, ``most`` or fewer) ids. Equal windows count once."""
    torch = need("torch", EXTRA, PURPOSE)
    if most < 1 or not reading.predicted(most):
        problem = "the model has too few positions to predict a token of a text"
        raise RefusedError(problem, Hint("run analyze without ", option("text")), "analyze.short")
    length, enough = min(most, len(ids)), max(WINDOWS, -(-LEAST // reading.predicted(most)))
    whole = len(ids) // length if length else 0
    rows = list(dict.fromkeys(tuple(ids[index * length : (index + 1) * length]) for index in range(whole)))
    if len(rows) * reading.predicted(length) < LEAST:
        why = f"the text has {count(len(ids), 'token')}"
        least = -(-LEAST // reading.predicted(most)) * most
        if len(rows) < whole:
            why += f" and repeats itself: {count(len(rows), 'different window')} of {length} tokens, not {whole:,}"
        hint = f"give a text of about {most * enough:,} tokens; at least {least:,} are needed"
        raise UnreadableError(f"{why}, too few for a measurement", hint, "analyze.text-short")
    if len(rows) > enough:
        rows = [rows[index] for index in torch.linspace(0, len(rows) - 1, enough).long().tolist()]
    return torch.tensor(rows)
