"""Names under which quantisers store a matrix as codes and scales."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import HEAD, QuantisedMatrix, Verdict

CODE_LEAVES = ("qweight", "weight_packed", "_weight_qdata", "weight._data", "weight._data._data", "W_q")
"""Ends of the names of codes, after a module's name, where the codes are not stored as ``weight``."""

BNB_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
"""Ends of the names of the description that bitsandbytes stores beside 4-bit codes."""

SCALE_LEAVES = (
    "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_zero_point", "weight_global_scale",
    "scales", "biases", "qzeros", "g_idx",
    "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", *BNB_STATES, "SCB",
    "_weight_scale", "_weight_zero_point", "weight._scale", "weight._shift",
)  # fmt: skip
"""Ends of the names of scales, zero points and what belongs to them."""

LEAVES = (*CODE_LEAVES, *SCALE_LEAVES)
"""Suffixes after a module's name in GPTQ, AWQ, compressed-tensors, FP8, bitsandbytes, MLX, torchao and quanto files."""
INERT_LEAVES = (
    "input_scale", "input_zero_point", "input_global_scale", "input_scale_ub", "output_scale", "output_zero_point",
)  # fmt: skip
"""Ends of the names of settings for the activations, which leave the values of a matrix as they are."""

_BESIDE = ("_blocks", "_scales")
"""Ends that MXFP4 puts behind the name of a parameter, as in GPT-OSS."""
_INSIDE = (
    "lora_", "base_layer.", "modules_to_save.", "original_module.", "_orig_mod.", "module.", "_fsdp", "_checkpoint",
)  # fmt: skip
"""Starts of names inside a module that PEFT or a training wrapper put there: other rules report them."""


def parts_of(module: str, stored: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the end and the name of each stored tensor of a module, except for its bias.

    Beside a stored weight, the parameters of layers inside the head (RoBERTa's ``dense``) are not parts of the matrix.
    """
    start = f"{module}."
    layers = (".weight", ".bias") if f"{start}weight" in stored else ()
    for name in stored:
        if name.startswith(start):
            end = name[len(start) :]
            if end != "bias" and not end.startswith(_INSIDE) and not end.endswith(layers):
                yield end, name
        elif name.startswith(module) and name[len(module) :] in _BESIDE:
            yield name[len(module) :], name


def quantised_twin(name: str, stored: Collection[str]) -> str | None:
    """Return the stored tensor that shows that the matrix ``name`` has further parts, else ``None``.

    The part may be of a quantiser that tieconv does not know. The tensor ``name`` is then not the whole matrix.
    """
    module = name.removesuffix(".weight")
    known = next((f"{module}.{leaf}" for leaf in LEAVES if f"{module}.{leaf}" in stored), None)
    if known is not None:
        return known
    parts = parts_of(module, stored) if module != name else ()
    return next((part for end, part in parts if end not in ("weight", *INERT_LEAVES)), None)


_PARAMETRISED = ("parametrizations.weight.", "weight_g", "weight_v", "weight_orig", "weight_mask", "weight_u")
"""Starts of the names that `torch.nn.utils` makes of a weight: parametrize, weight_norm, spectral_norm and prune."""


def parametrised_parts(matrix: QuantisedMatrix) -> tuple[str, ...]:
    """Return the parts of a matrix that is not quantised: `torch.nn.utils` computes it from them."""
    start = f"{matrix.name.removesuffix('.weight')}."
    parts = (part.name for part in matrix.parts if part.name.removeprefix(start).startswith(_PARAMETRISED))
    return () if matrix.scheme else tuple(sorted(parts))


LISTING_METHODS = frozenset({"compressed-tensors", "gptq", "awq", "bitsandbytes", "fp8"})
"""Methods whose loaders build a quantised module where the config lists it, whatever is stored."""


def lists_float_head(inspection: Inspection) -> bool:
    """Return whether the config lists the head as quantised, but no codes give it values.

    Beside a quantised embedding, an absent head may be tied to the codes: the result is false then.
    """
    declared, tables = inspection.quantisation, inspection.quantised
    listing = (*LISTING_METHODS, "auto-round")
    if declared is None or declared.method not in listing or declared.head.verdict is not Verdict.QUANTISED:
        return False
    if tables is not None and tables.of(HEAD) is not None:
        return False
    head = inspection.head.output_head
    return tables is None or (head is not None and head.stored)
