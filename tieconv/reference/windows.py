"""Feed a window of a text to a model, and choose which tokens it predicts: causal, masked or encoder-decoder."""

from __future__ import annotations

from typing import Any, Protocol

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.reference.batch import Batch
from tieconv.reference.model import load_config, load_whole_config
from tieconv.reference.packages import need
from tieconv.text import shown

EVERY = 7
"""A masked model predicts one of this many tokens: about the 15 % that BERT was trained with."""

_FROM_PADDING = ("roberta", "roberta-xl", "camembert", "mpnet", "data2vec-text", "longformer", "esm", "ibert")
"""Ends of model types that number positions from the padding token's id on."""

_POSITIONS = ("max_position_embeddings", "max_target_positions", "max_decoder_position_embeddings")

EXTRA, PURPOSE = "torch", "--text, which runs the model,"
"""The extra that `--text` needs, and the purpose for the error message."""


@record
class Fed:
    """One window as the model gets it. ``places`` index the logits that predict the ids ``targets`` (n,)."""

    batch: Batch
    places: Any
    targets: Any


class Reading(Protocol):
    """How the model reads windows of ids, each one (length,) tensor."""

    @property
    def added(self) -> tuple[int, ...]:
        """The ids that are added to those of the text."""
        ...

    def fed(self, window: Any) -> Fed:
        """Return the window as a batch of one."""
        ...

    def predicted(self, length: int) -> int:
        """Return how many tokens of a window of ``length`` are predicted."""
        ...

    def longest(self, places: int) -> int:
        """Return the longest window of a model that has ``places`` positions."""
        ...


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


def reading_of(directory: str, architecture: str, tokenizer: Any) -> Reading:
    """Return how the class reads a text.

    Raises `RefusedError` if the class is not a language model, or if it lacks a token that the measurement needs.
    """
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return Causal()
    if architecture.endswith("ForMaskedLM"):
        return _masked(directory, architecture, tokenizer)
    if architecture.endswith(("ForConditionalGeneration", "MTModel")) and _reads_ids(architecture):
        config = load_whole_config(directory)
        if getattr(config, "is_encoder_decoder", False):
            return _encoder_decoder(directory, config, tokenizer)
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


def _masked(directory: str, architecture: str, tokenizer: Any) -> Masked:
    if tokenizer.mask_token_id is None:
        raise _refusal(
            f"the tokenizer of {shown(directory)} has no mask token, which --text needs for {shown(architecture)}"
        )
    return Masked(tokenizer.mask_token_id, _ids(tokenizer.cls_token_id), _ids(tokenizer.sep_token_id))


def _encoder_decoder(directory: str, config: Any, tokenizer: Any) -> EncoderDecoder:
    start = getattr(config, "decoder_start_token_id", None)
    if start is None:
        raise _refusal(f"the config of {shown(directory)} has no decoder_start_token_id, which the decoder starts with")
    return EncoderDecoder(start, _ids(tokenizer.eos_token_id))


def _reads_ids(architecture: str) -> bool:
    """Return whether the class reads ids rather than sound or pictures."""
    cls = getattr(need("transformers", EXTRA, PURPOSE), architecture, None)
    return cls is None or getattr(cls, "main_input_name", "input_ids") == "input_ids"


def _refusal(why: str) -> RefusedError:
    return RefusedError(why, "run analyze without --text", "analyze.not-language")


def _ids(token: int | None) -> tuple[int, ...]:
    return () if token is None else (token,)


def _joined(before: tuple[int, ...], ids: Any, after: tuple[int, ...]) -> Any:
    return need("torch", EXTRA, PURPOSE).cat([ids.new_tensor(before), ids, ids.new_tensor(after)])


def _batch(ids: Any, *, placed: bool = True) -> Batch:
    return Batch(ids[None], ids.new_ones(1, len(ids)), placed=placed)
