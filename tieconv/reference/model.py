"""A checkpoint as a torch model: its logits in a precision of choice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from math import prod
from typing import Any

from tieconv.checkpoint.value_type import identity_record, record
from tieconv.errors import NotRunError, RefusedError, UnreadableError
from tieconv.reference.packages import BY_TRANSFORMERS, need, quiet
from tieconv.text import Hint, call, option, shown

# Run the torch reference on a GPU: find it, its free memory, and products without a loss of precision.

CPU = "cpu"


def torch_device(name: str, number: int) -> str:
    """Return torch's name for ``cpu``, or for ``cuda`` and the number of a GPU. Raises `NotRunError` without it."""
    if name == CPU:
        return CPU
    torch = need("torch", "onnx", "the torch reference")
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if visible <= number:
        why = f"finds {visible} GPUs" if torch.version.cuda else "is a CPU build"
        problem = f"the reference cannot run on GPU {number}: torch {torch.__version__} {why}"
        raise NotRunError(problem, ON_CPU, "parity.reference-device")
    return f"cuda:{number}"


ON_CPU = Hint("run the reference on the CPU: ", option(reference_device="cpu"))


def free_memory(device: str) -> int:
    """Return the free bytes of a GPU."""
    torch = need("torch", "onnx", "the torch reference")
    return int(torch.cuda.mem_get_info(device)[0])


def moved(value: Any, device: str) -> Any:
    """Return a tensor on ``device``, and any other value as it is."""
    return value.to(device) if hasattr(value, "to") and hasattr(value, "device") else value


@contextmanager
def memory_of(device: str) -> Iterator[None]:
    """Raise `NotRunError` if torch reports that the memory of ``device`` ran out."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        hint = Hint("use ", option(reference="float32"), ", or ", ON_CPU)
        raise NotRunError(f"the memory of {device} ran out in the torch reference", hint, "parity.memory") from error


@contextmanager
def exact_products(device: str) -> Iterator[None]:
    """Keep torch from TF32, and from sums in 16 bits, for which the floor would be too large."""
    if device == CPU:
        yield
        return
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [(matmul, name, getattr(matmul, name)) for name in names] + [(cudnn, "allow_tf32", cudnn.allow_tf32)]
    try:
        for owner, name, _ in before:
            setattr(owner, name, False)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


# Load a checkpoint with the class that its config specifies, and compute logits for a batch.

_PURPOSE = "the torch reference"


@dataclass(eq=False)
class Reference:
    """A torch model that computes logits, on the CPU or on ``device``. Its logits are on the CPU.

    ``dtype`` is the name of its precision (``float64``). ``missing`` are the parameters that the checkpoint lacks.
    ``unused`` are the stored tensors that the class does not read. Both have the names that transformers gives them.
    ``widen_all`` gives every weight float64 while the model computes `in_float64`.
    """

    model: Any
    dtype: str
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    device: str = CPU
    widen_all: Callable[[], None] | None = None

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
            if batch.features not in self._encoded:
                values = batch.features.values.to(self._dtype)
                token = values.new_zeros((len(values), 1)).long()
                made = self.call(**{batch.features.name: values}, decoder_input_ids=token, use_cache=False)
                self._encoded[batch.features] = made.encoder_last_hidden_state
            states = batch.features.for_rows(self._encoded[batch.features], len(batch.decoder_ids))
            return {"encoder_outputs": encoder_outputs(states), "decoder_input_ids": batch.decoder_ids}
        if batch.decoder_ids is not None:
            masked = {} if batch.decoder_mask is None else {"decoder_attention_mask": batch.decoder_mask}
            ids = {"input_ids": batch.ids, "decoder_input_ids": batch.decoder_ids}
            return {**ids, "attention_mask": batch.mask, **masked}
        arguments = {"input_ids": batch.ids[:, start:], "attention_mask": batch.mask}
        if batch.embeds is not None:
            del arguments["input_ids"]
            arguments["inputs_embeds"] = batch.embeds[:, start:].to(self._dtype)
        if batch.blocks is not None and not start:
            # later tokens are text, and generation too gives types only for the first
            name = next(name for name in ("token_type_ids", "mm_token_type_ids") if self.accepts(name))
            arguments[name] = batch.blocks
        if batch.types is not None:
            arguments["token_type_ids"] = batch.types[:, start:]
        if batch.placed and "position_ids" in self._accepts:
            arguments["position_ids"] = batch.positions[..., start:]
        return arguments

    @cached_property
    def _encoded(self) -> dict[Features, Any]:
        return {}

    @property
    def _dtype(self) -> Any:
        import torch

        return getattr(torch, self.dtype)

    @contextmanager
    def in_float64(self) -> Iterator[None]:
        """Compute in float64 in this context. A float32 model has one layer at a time in float64."""
        from tieconv.reference.float64 import widened

        _run_experts_apart(self.model)
        before, self.dtype = self.dtype, "float64"
        try:
            with widened(self.model) as self.widen_all:
                yield
        finally:
            self.dtype, self.widen_all = before, None
            self._encoded.clear()

    def logits(self, batch: Batch, positions_needed: int = 0) -> Any:
        """Return the logits (batch × sequence × vocabulary) of one pass over the whole batch, without a cache.

        ``positions_needed`` is how many of the last positions are needed; 0 means all. Some classes return more.
        """
        with self._exactly():
            made = self.forward(batch, positions_needed)
            if self.widen_all is not None and made.dtype is not self._dtype:
                self.widen_all()
                made = self.forward(batch, positions_needed)
            return moved(made, CPU)

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
            if self.widen_all is not None:
                # the class reads weights of a module that does not run, or asks for their type before
                widen_all, self.widen_all = self.widen_all, None
                widen_all()
                return self.call(**inputs)
            config, name = self.model.config, type(self.model).__name__
            path = os.path.join(shown(getattr(config, "name_or_path", "") or "the model"), "config.json")
            lines = str(error).strip().splitlines() or [""]
            problem = f"{path}: {name} cannot run with this config: {type(error).__name__}: {shown(lines[0], 200)}"
            hint = Hint("compare the sizes in config.json with the shapes of the tensors: ", call("inspect"))
            raise UnreadableError(problem, hint, "reference.forward") from error

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
        problem = f"transformers cannot read {shown(os.path.join(directory, 'config.json'))}: {shown(error)}"
        hint = "tieconv never runs code from a checkpoint: install a transformers release with this model type"
        raise UnreadableError(problem, hint, "reference.config") from error


def load(directory: str, config: Mapping[str, object], dtype: str, device: str = CPU) -> Reference:
    """Return the model in ``directory`` with every parameter in ``dtype``, on torch's ``device``.

    ``dtype`` is ``float64``, ``float32``, ``float16`` or ``bfloat16``. Raises `UnreadableError` if transformers has no
    such class or cannot load it. Raises `RefusedError` if transformers would fill parameters with random values, and
    for an adapter beside the weights. Raises `NotRunError` if the memory of the device runs out.
    """
    check_no_adapter(directory, config, directory)
    torch = need("torch", "onnx", _PURPOSE)
    transformers = need("transformers", "onnx", _PURPOSE)
    name = architecture(config, directory)
    cls = getattr(transformers, name, None)
    if cls is None or not hasattr(cls, "from_pretrained"):
        problem = f"{shown(directory)}: transformers {transformers.__version__} has no class {shown(name)}"
        hint = "tieconv never runs code from a checkpoint: install a transformers release with this class"
        raise UnreadableError(problem, hint, "reference.class")
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
                Hint("list the tensors of the checkpoint: ", call("inspect", str(directory))),
                "reference.load",
            ) from error
    missing = tuple(sorted(map(str, info["missing_keys"])))
    mismatched = tuple(sorted(str(entry[0]) for entry in info.get("mismatched_keys", ())))
    if missing or mismatched:
        raise RefusedError(
            f"{shown(directory)}: transformers would fill {shown((missing + mismatched)[0])} with random values",
            Hint("list the tensors of the checkpoint: ", call("inspect", str(directory))),
            "reference.missing",
        )
    unused = tuple(sorted(map(str, info["unexpected_keys"])))
    if dtype == "float64":
        _run_experts_apart(model)
    reference = Reference(model.eval().to(CPU), dtype, missing, unused)
    reference.move(device)
    return reference


def check_no_adapter(directory: str, config: Mapping[str, object], source: str) -> None:
    """Check that no PEFT adapter is beside the weights of ``source``, unless its class loads one (Granite Speech)."""
    if config.get("has_lora_adapter") is True or not os.path.lexists(os.path.join(directory, "adapter_config.json")):
        return
    problem = f"{shown(source)} holds a whole model and adapter_config.json: with PEFT, transformers loads their sum"
    hint = "move the adapter's two files into a separate directory, or delete them if the weights contain the adapter"
    raise RefusedError(problem, hint, "reference.adapter")


def _run_experts_apart(model: Any) -> None:
    if getattr(model, "_can_set_experts_implementation", lambda: False)():
        model.set_experts_implementation("eager")  # torch's grouped matrix product of experts does not support float64


def architecture(config: Mapping[str, object], directory: str) -> str:
    """Return the class that the config specifies. Raises `UnreadableError` if it specifies none."""
    named = config.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str) and named[0].isidentifier():
        return named[0]
    problem = f'{shown(os.path.join(directory, "config.json"))} has no "architectures" entry'
    hint = 'add the class of the model, for example "architectures": ["LlamaForCausalLM"]'
    raise UnreadableError(problem, hint, "reference.class")


@record
class Batch:
    """Token ids (batch × sequence, int64) and their mask: 1 for a token, 0 for padding.

    ``decoder_ids`` are set for an encoder-decoder, ``decoder_mask`` if some of them are padding. ``types`` are set for
    a model with token types. Without ``placed`` the model numbers the positions itself. ``embeds`` are rows (batch ×
    sequence × width) that a decoder reads in place of the ids. ``blocks`` are token types that change what a token
    attends to. ``features`` are what an encoder reads in place of the ids, which then have no columns.
    """

    ids: Any
    mask: Any
    decoder_ids: Any = None
    types: Any = None
    placed: bool = True
    decoder_mask: Any = None
    given_positions: Any = None
    embeds: Any = None
    blocks: Any = None
    features: Features | None = None

    @property
    def positions(self) -> Any:
        """Position ids: the given ones, or as generation counts them, from each row's first token."""
        if self.given_positions is not None:
            return self.given_positions
        return (self.mask.cumsum(1) - 1).clamp(min=0)

    @property
    def answered(self) -> Any:
        """The token ids that the logits belong to: the decoder's, if the model has a decoder."""
        return self.ids if self.decoder_ids is None else self.decoder_ids

    def until(self, end: int) -> Batch:
        """Return the first ``end`` tokens of each row: the decoder's, if the model has a decoder."""
        if self.decoder_ids is not None:
            behind = None if self.decoder_mask is None else self.decoder_mask[:, :end]
            return replace(self, decoder_ids=self.decoder_ids[:, :end], decoder_mask=behind)
        rows = {name: getattr(self, name) for name in ("ids", "mask", "types", "embeds", "blocks")}
        cut = {name: values[:, :end] for name, values in rows.items() if values is not None}
        positions = None if self.given_positions is None else self.given_positions[..., :end]
        return replace(self, **cut, given_positions=positions)


@identity_record
class Features:
    """Features ``values`` (rows × the axes of one row, float32) for the argument ``name`` of the forward pass.

    A batch may have more rows than these. Its row i then reads the features i modulo their number.
    """

    name: str
    values: Any

    def for_rows(self, states: Any, rows: int) -> Any:
        """Return the encoder's ``states`` of these features, one for each of the ``rows`` of a batch."""
        import torch

        return states[torch.arange(rows) % len(self.values)]


def encoder_outputs(states: Any) -> Any:
    """Return the encoder's last hidden states as the argument `encoder_outputs` of a forward pass."""
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=states)


# Say what an encoder reads besides token ids: features of images or sound, in a shape that its config fixes.

_IDS = "input_ids"


@record
class EncoderInput:
    """The argument of the forward pass, and the axes of one row.

    These are channels and sides of an image, or mel bins and time steps of sound.
    """

    name: str
    shape: tuple[int, ...]


def feature_argument(cls: Any) -> str:
    """Return the main input of a class that reads images or sound; empty for token ids."""
    main = str(getattr(cls, "main_input_name", _IDS))
    return main if main != _IDS else ""


_CACHES = ("cache", "past_key_values")
"""The argument of a class for the keys and values of earlier tokens: since transformers 5.24, and before."""


def cache_argument(cls: Any) -> str:
    """Return the argument of the class for keys and values of earlier tokens; empty if it has none."""
    accepted = signature(cls.forward).parameters
    return next((name for name in _CACHES if name in accepted), "")


def cache_in(values: Mapping[str, Any]) -> Any:
    """Return the keys and values among the inputs or outputs of a class, or ``None``."""
    return next((values[name] for name in _CACHES if name in values), None)


def planned_encoder_input(cls: Any, directory: str) -> EncoderInput | None:
    """Return what `encoder_input` returns, from a model without weights. ``directory`` holds its config.

    Raises `RefusedError` if the config does not fix the shape.
    """
    if not feature_argument(cls):
        return None
    transformers, torch = (need(package, "onnx", "the torch reference") for package in ("transformers", "torch"))
    config = load_whole_config(directory)
    try:
        with quiet(transformers), torch.device("meta"):
            model = cls(config)
    except Exception as error:
        # a class's constructor raises any exception
        why = f"cannot be built without weights ({shown(error, 200)})"
        hint = Hint("export it ", BY_TRANSFORMERS)
        raise RefusedError(f"{shown(cls.__name__)} {why}", hint, "export.kind") from error
    return encoder_input(model)


def encoder_input(model: Any) -> EncoderInput | None:
    """Return the features that the encoder of ``model`` reads; ``None`` for token ids.

    Images have the `num_channels` and the `image_size` of the encoder's config. Sound has its `num_mel_bins`, and so
    many time steps that the encoder's convolutions make `max_source_positions` of them. Raises `RefusedError` if the
    config has neither.
    """
    name = feature_argument(type(model))
    if not name:
        return None
    encoder = model.get_encoder()
    config = encoder.config
    channels, image = getattr(config, "num_channels", None), getattr(config, "image_size", None)
    if isinstance(channels, int) and image:
        sides = (image, image) if isinstance(image, int) else tuple(image)
        return EncoderInput(name, (channels, *sides))
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if isinstance(bins, int) and isinstance(positions, int):
        strides = (module.stride[0] for module in encoder.children() if hasattr(module, "stride"))
        return EncoderInput(name, (bins, positions * prod(strides)))
    problem = f"{shown(type(model).__name__)} reads {shown(name)}, and its config does not fix their shape"
    raise RefusedError(f"{problem}, as export needs", Hint("export it ", BY_TRANSFORMERS), "export.kind")


# Tell the language model of a loaded class from its other parts, by transformers' own accessors.


def language_modules(model: Any) -> dict[str, Any]:
    """Return decoder, input embedding and head by their paths in the model; one that it does not have is absent."""
    names = {id(module): name for name, module in model.named_modules()}
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    return {names[id(part)]: part for part in parts if id(part) in names}


def left_out(model: Any, path: str = "", parts: Iterable[str] | None = None) -> Iterator[str]:
    """Yield the outermost modules and parameters that are in no part of the language model and hold none."""
    parts = tuple(language_modules(model)) if parts is None else tuple(parts)
    if path in parts:
        return
    module = model.get_submodule(path)
    for name, _ in module.named_parameters(recurse=False):
        yield f"{path}.{name}".lstrip(".")
    for name, child in module.named_children():
        inner = f"{path}.{name}".lstrip(".")
        if any(part == inner or part.startswith(f"{inner}.") for part in parts):
            yield from left_out(model, inner, parts)
        elif any(True for _ in child.parameters()):
            yield inner


def stored_outside(model: Any, stored: Iterable[str]) -> tuple[str, ...]:
    """Return the stored names that transformers loads into parts other than the language model.

    A name that tieconv cannot follow is not returned, so that its tensor still has to be in the graph.
    """
    parts = tuple(left_out(model))
    if not parts:
        return ()
    loads = loaded_names(model, tuple(stored))
    return tuple(name for name, loaded in loads.items() if any(f"{loaded}.".startswith(f"{part}.") for part in parts))


def loaded_names(model: Any, stored: tuple[str, ...]) -> dict[str, str]:
    """Return for each stored name the parameter that it is loaded into, or the first of several."""
    parameters = model.state_dict()
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key

        mapping = get_model_conversion_mapping(model)
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        renamings = [entry for entry in mapping if not isinstance(entry, WeightConverter)]
        prefix = model.base_model_prefix
        loads = {name: rename_source_key(name, renamings, converters, prefix, parameters)[0] for name in sorted(stored)}
    except (ImportError, TypeError):
        return {name: name for name in stored}  # a release with another interface
    return {name: name if loaded not in parameters and name in parameters else loaded for name, loaded in loads.items()}


def stored_unread(reference: Reference, reads: EncoderInput, stored: Iterable[str]) -> tuple[str, ...]:
    """Return the names in ``stored`` that are loaded into a parameter without effect on the logits.

    The forward pass runs once, on features of zeros for the encoder and one decoder token. Its autograd graph leads to
    each parameter that it used; no gradient is computed.
    """
    import torch

    model = reference.model
    asks = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        with torch.inference_mode(False), torch.enable_grad():
            for parameter in asks:
                parameter.requires_grad_(parameter.is_floating_point())
            values = torch.zeros((1, *reads.shape), dtype=model.dtype)
            token = torch.zeros((1, 1), dtype=torch.int64)
            made = reference.call(**{reads.name: values}, decoder_input_ids=token, use_cache=False)
            # The parameters that the autograd graph of the result leads to.
            used, seen, waiting = set(), {None}, [made.logits.grad_fn]
            while waiting:
                node = waiting.pop()
                if node in seen:
                    continue
                seen.add(node)
                if hasattr(node, "variable"):
                    used.add(id(node.variable))
                waiting.extend(following for following, _ in node.next_functions)
    finally:
        for parameter, asked in asks.items():
            parameter.requires_grad_(asked)
    unread = {name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) not in used}
    return tuple(name for name, loaded in loaded_names(model, tuple(stored)).items() if loaded in unread)
