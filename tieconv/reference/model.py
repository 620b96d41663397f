"""Load a checkpoint with the class that its config specifies, and compute logits for a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

from tieconv.errors import NotRunError, RefusedError, UnreadableError
from tieconv.reference.batch import Batch
from tieconv.reference.device import CPU, exact_products, memory_of, moved
from tieconv.reference.encoder_decoder_steps import encoder_decoder_steps, encoder_outputs
from tieconv.reference.features import Features
from tieconv.reference.library_messages import quiet
from tieconv.reference.packages import need
from tieconv.text import command, shown

_BLOCKS = ("token_type_ids", "mm_token_type_ids")
"""Arguments that mark the tokens of an image."""
_PURPOSE = "the torch reference"


@dataclass(eq=False)
class Reference:
    """A torch model that computes logits, on the CPU or on ``device``. Its logits are on the CPU.

    ``dtype`` is the name of its precision (``float64``). ``missing`` are the parameters that the checkpoint lacks.
    ``unused`` are the stored tensors that the class does not read. Both have the names that transformers gives them.
    """

    model: Any
    dtype: str
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    device: str = CPU

    def move(self, device: str) -> None:
        """Move the model to torch's ``device``. Raises `NotRunError` if its memory runs out."""
        with memory_of(device):
            self.model.to(device)
        self.device = device

    @cached_property
    def _accepts(self) -> frozenset[str]:
        return frozenset(signature(self.model.forward).parameters)

    def accepts(self, name: str) -> bool:
        """Return whether the class's forward pass has an argument with this name."""
        return name in self._accepts

    @property
    def matrices(self) -> list[Any]:
        """Parameters and buffers with at least two axes, whether stored or computed by the class."""
        return [tensor for tensor in (*self.model.parameters(), *self.model.buffers()) if tensor.ndim > 1]

    @property
    def epsilons(self) -> frozenset[float]:
        """The epsilon values of the class's norms, which they add before the square root."""
        names = ("eps", "variance_epsilon", "epsilon")
        values = (getattr(module, name, None) for module in self.model.modules() for name in names)
        return frozenset(value for value in values if isinstance(value, float))

    @property
    def offsets(self) -> dict[str, int]:
        """By parameter, the number of rows before position 0 in a position table. No token reads these rows."""
        modules = self.model.named_modules()
        tables = (
            (name, getattr(module, "offset", None)) for name, module in modules if hasattr(module, "embedding_dim")
        )
        return {f"{name}.weight": rows for name, rows in tables if isinstance(rows, int)}

    def inputs(self, batch: Batch, start: int = 0) -> dict[str, Any]:
        """Return the keyword arguments of the forward pass from position ``start``. The mask covers all positions."""
        if batch.features is not None:
            states = batch.features.for_rows(self._states(batch.features), len(batch.decoder_ids))
            return {"encoder_outputs": encoder_outputs(states), "decoder_input_ids": batch.decoder_ids}
        if batch.decoder_ids is not None:
            masked = {} if batch.decoder_mask is None else {"decoder_attention_mask": batch.decoder_mask}
            ids = {"input_ids": batch.ids, "decoder_input_ids": batch.decoder_ids}
            return {**ids, "attention_mask": batch.mask, **masked}
        arguments = {"input_ids": batch.ids[:, start:], "attention_mask": batch.mask}
        if batch.embeds is not None:
            del arguments["input_ids"]
            arguments["inputs_embeds"] = batch.embeds[:, start:].to(self.model.dtype)
        if batch.blocks is not None and not start:
            # later tokens are text, and generation too gives types only for the first
            name = next(name for name in _BLOCKS if self.accepts(name))
            arguments[name] = batch.blocks
        if batch.types is not None:
            arguments["token_type_ids"] = batch.types[:, start:]
        if batch.placed and "position_ids" in self._accepts:
            arguments["position_ids"] = batch.positions[..., start:]
        return arguments

    def _states(self, features: Features) -> Any:
        """Return the encoder's last hidden states of ``features``, computed once by the class's forward pass."""
        if features not in self._encoded:
            values = features.values.to(self.model.dtype)
            token = values.new_zeros((len(values), 1)).long()
            made = self.call(**{features.name: values}, decoder_input_ids=token, use_cache=False)
            self._encoded[features] = made.encoder_last_hidden_state
        return self._encoded[features]

    @cached_property
    def _encoded(self) -> dict[Features, Any]:
        return {}

    def logits(self, batch: Batch, positions_needed: int = 0) -> Any:
        """Return the logits (batch × sequence × vocabulary) of one pass over the whole batch, without a cache.

        ``positions_needed`` is how many of the last positions are needed; 0 means all. Some classes return more.
        """
        with self._exactly():
            return moved(self.forward(batch, positions_needed), CPU)

    def forward(self, batch: Batch, positions_needed: int = 0) -> Any:
        """Return the same as `logits`, but in the precision that torch chooses. Gradients can flow."""
        more: dict[str, Any] = {"use_cache": False} if "use_cache" in self._accepts else {}
        if positions_needed and "logits_to_keep" in self._accepts:
            more["logits_to_keep"] = positions_needed
        return self.call(**self.inputs(batch), **more).logits

    def call(self, **inputs: Any) -> Any:
        """Return what the class's forward pass returns. Raises `UnreadableError` if it fails."""
        try:
            with memory_of(self.device):
                return self.model(**{name: moved(value, self.device) for name, value in inputs.items()})
        except (MemoryError, NotRunError):
            raise
        except Exception as error:  # a config can make the class's code raise any exception
            config, name = self.model.config, type(self.model).__name__
            path = os.path.join(shown(getattr(config, "name_or_path", "") or "the model"), "config.json")
            lines = str(error).strip().splitlines() or [""]
            raise UnreadableError(
                f"{path}: {name} cannot run with this config: {type(error).__name__}: {shown(lines[0], 200)}",
                "compare the sizes in config.json with the shapes of the tensors: tieconv inspect",
                "reference.forward",
            ) from error

    def steps(self, batch: Batch, pieces: tuple[int, ...]) -> Iterator[Any]:
        """Yield the logits of consecutive ``pieces`` of the sequence, each from the cache of the earlier ones."""
        from transformers import DynamicCache

        if batch.decoder_ids is not None:
            with self._exactly():
                for logits in encoder_decoder_steps(self.call, self.inputs(batch), pieces):
                    yield moved(logits, CPU)
            return

        cache, start = DynamicCache(config=self.model.config), 0
        for length in pieces:
            end = start + length
            with self._exactly():
                arguments = self.inputs(batch.until(end), start)
                yield moved(self.call(**arguments, past_key_values=cache, use_cache=True).logits, CPU)
            start = end

    @contextmanager
    def _exactly(self) -> Iterator[None]:
        import torch

        from tieconv.reference.float64 import KeepFloat64

        keep = KeepFloat64() if self.dtype == "float64" else nullcontext()
        with torch.inference_mode(), exact_products(self.device), keep:
            yield


def load_config(directory: str) -> Any:
    """Return the config of the language model in ``directory`` as transformers reads it. Raises `UnreadableError`."""
    return load_whole_config(directory).get_text_config(decoder=True)


def load_whole_config(directory: str) -> Any:
    """Return the config of all parts of the model: encoder, decoder and vision tower. Raises `UnreadableError`."""
    transformers = need("transformers", "onnx", _PURPOSE)
    try:
        with quiet(transformers):
            return transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    except MemoryError:
        raise
    except Exception as error:  # transformers raises any exception on a config that it does not expect
        raise UnreadableError(
            f"transformers cannot read {shown(os.path.join(directory, 'config.json'))}: {shown(error)}",
            "tieconv never runs code from a checkpoint: install a transformers release with this model type",
            "reference.config",
        ) from error


def load(directory: str, config: Mapping[str, object], dtype: str, device: str = CPU) -> Reference:
    """Return the model in ``directory`` with every parameter in ``dtype``, on torch's ``device``.

    ``dtype`` is ``float64``, ``float32``, ``float16`` or ``bfloat16``. Raises `UnreadableError` if transformers has no
    such class or cannot load it. Raises `RefusedError` if transformers would fill parameters with random values.
    Raises `NotRunError` if the memory of the device runs out.
    """
    torch = need("torch", "onnx", _PURPOSE)
    transformers = need("transformers", "onnx", _PURPOSE)
    name = architecture(config, directory)
    cls = getattr(transformers, name, None)
    if cls is None or not hasattr(cls, "from_pretrained"):
        raise UnreadableError(
            f"{shown(directory)}: transformers {transformers.__version__} has no class {shown(name)}",
            "tieconv never runs code from a checkpoint: install a transformers release with this class",
            "reference.class",
        )
    with quiet(transformers):
        try:
            model, info = cls.from_pretrained(
                directory, dtype=getattr(torch, dtype), output_loading_info=True, local_files_only=True
            )
        except MemoryError:
            raise
        except Exception as error:  # as in `load_whole_config`
            raise UnreadableError(
                f"transformers cannot load {shown(directory)} as {shown(name)}: {shown(error)}",
                f"list the tensors of the checkpoint: {command('inspect', str(directory))}",
                "reference.load",
            ) from error
    missing = tuple(sorted(map(str, info["missing_keys"])))
    mismatched = tuple(sorted(str(entry[0]) for entry in info.get("mismatched_keys", ())))
    if missing or mismatched:
        raise RefusedError(
            f"{shown(directory)}: transformers would fill {shown((missing + mismatched)[0])} with random values",
            f"list the tensors of the checkpoint: {command('inspect', str(directory))}",
            "reference.missing",
        )
    unused = tuple(sorted(map(str, info["unexpected_keys"])))
    if dtype == "float64" and getattr(model, "_can_set_experts_implementation", lambda: False)():
        model.set_experts_implementation("eager")  # torch's grouped matrix product of experts does not support float64
    reference = Reference(model.eval().to(CPU), dtype, missing, unused)
    reference.move(device)
    return reference


def architecture(config: Mapping[str, object], directory: str) -> str:
    """Return the class that the config specifies. Raises `UnreadableError` if it specifies none."""
    named = config.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str) and named[0].isidentifier():
        return named[0]
    raise UnreadableError(
        f'{shown(os.path.join(directory, "config.json"))} has no "architectures" entry',
        'add the class of the model, for example "architectures": ["LlamaForCausalLM"]',
        "reference.class",
    )
