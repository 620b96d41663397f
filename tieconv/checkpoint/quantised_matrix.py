"""A quantised embedding or head as one logical matrix, and what is proved about the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import ClassVar

from tieconv.checkpoint.value_type import Listed, record, values_of
from tieconv.checkpoint.weight_file import FLOATS, TensorRecord

EMBEDDING, HEAD = "embedding", "head"
"""The roles of a matrix."""


class Verdict(StrEnum):
    """What the config says about a module."""

    QUANTISED = "quantised"
    LEFT_OUT = "left_out"
    UNDECIDED = "undecided"


@record
class ConfigChoice(Listed):
    """What the config says about one module, and the ``entry`` that says it; ``None`` for a number that it lacks.

    ``layout`` is its word for how codes are stored: a format of compressed-tensors, ``gptq_v2``, a mode of MLX.
    ``block`` are the rows and columns that share a scale.
    """

    KEYS: ClassVar = {"group": "group_size", "block": None}

    verdict: Verdict
    entry: str = ""
    bits: int | None = None
    group: int | None = None
    symmetric: bool | None = None
    layout: str = ""
    block: tuple[int, int] | None = None


@record
class DeclaredQuantisation(Listed):
    """The quantisation that the config describes: its method, its path, and what it says about the output head.

    ``floats`` is a matrix of a layer that the method quantises, if the files store floats alone. Else it is empty.
    """

    KEYS: ClassVar = {"path": "config", "floats": None}

    method: str
    path: str
    head: ConfigChoice
    floats: str = ""


@record
class QuantisedPart(Listed):
    """One stored tensor of a matrix and its purpose: ``codes``, ``scales``, ``zero_points`` and others."""

    KEYS: ClassVar = {"role": "part", "nbytes": "bytes"}

    role: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class FaultKind(StrEnum):
    """How a matrix is broken."""

    NO_SCALES = "no_scales"
    NO_CODES = "no_codes"
    NO_ZERO_POINTS = "no_zero_points"
    SHAPE = "shape"


@record
class MatrixFault(Listed):
    """Why a matrix cannot be read, as a clause, and the tensors that it is about."""

    kind: FaultKind
    reason: str
    tensors: tuple[str, ...]


@record
class QuantisedMatrix:
    """The quantised input embedding or output head.

    ``name`` is the name that the unquantised matrix would have. ``shape`` is [V, H]. One scale covers ``block`` (rows,
    columns) elements. A number that neither the config nor the parts tell is ``None``. ``uncomputed`` says why tieconv
    does not compute the values; it is empty if tieconv does.
    """

    role: str
    name: str
    scheme: str
    bits: int | None
    block: tuple[int, int] | None
    symmetric: bool | None
    shape: tuple[int, int] | None
    parts: tuple[QuantisedPart, ...]
    config: ConfigChoice
    faults: tuple[MatrixFault, ...] = ()
    uncomputed: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def reads(self) -> bool:
        """Whether tieconv knows the values of the matrix."""
        return not self.faults and not self.uncomputed and self.shape is not None

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``matrices``."""
        group = {"group_size": self.block[1] if self.block else None}
        block = values_of(self, "block symmetric shape bytes=nbytes parts config faults uncomputed")
        return values_of(self, "role name scheme bits") | group | block


class PairState(StrEnum):
    """How the head relates to the embedding if one of them is quantised, or both are."""

    EQUAL = "equal"  # the same scheme, and every part is bitwise equal
    EQUAL_VALUES = "equal_after_dequantising"  # other parts, every value equal
    COPY = "quantised_copy"  # each value of the float matrix rounds to its code
    CALIBRATED_COPY = "calibrated_copy"  # the error is small, but larger than rounding to nearest leaves
    DIFFERENT = "different"
    UNREAD = "unread"  # nothing is proved


@record
class ErrorFigures(Listed):
    """By how much the values of two matrices differ.

    ``largest`` is the largest difference. ``of_bound`` is the largest difference as a share of what rounding to nearest
    allows at that element. ``rms_steps`` is the rms of the difference in steps of the code. ``relative_rms`` =
    rms(difference) / rms(values). ``None`` if a figure is undefined or not finite.
    """

    KEYS: ClassVar = {"largest": "max_abs"}

    largest: float | None
    of_bound: float | None
    rms_steps: float | None
    relative_rms: float | None
    rows_differing: int
    rows: int


@record
class PairRelation(Listed):
    """The proved relation, or the ``reason`` why nothing is proved. ``differing`` are the parts that differ."""

    KEYS: ClassVar = {"differing": "parts_differing"}

    state: PairState
    reason: str = ""
    differing: tuple[str, ...] = ()
    figures: ErrorFigures | None = None
    bytes_wasted: int = 0


@record
class QuantisedTables(Listed):
    """The quantised embedding and head of a model, and the config that describes them.

    ``method`` is the quantisation method that the config names, ``path`` the place in the config; both may be empty.
    ``relation`` is ``None`` if only one of the two matrices is stored.
    """

    KEYS: ClassVar = {"path": "config"}

    method: str
    path: str
    matrices: tuple[QuantisedMatrix, ...]
    relation: PairRelation | None

    def of(self, role: str) -> QuantisedMatrix | None:
        """Return the quantised matrix in this role."""
        return next((matrix for matrix in self.matrices if matrix.role == role), None)

    def faults(self, kind: FaultKind) -> Iterator[tuple[QuantisedMatrix, MatrixFault]]:
        """Yield the faults of this kind, with their matrices."""
        for matrix in self.matrices:
            yield from ((matrix, fault) for fault in matrix.faults if fault.kind is kind)


# Names under which quantisers store a matrix as codes and scales.

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


def parts_of(module: str, stored: Mapping[str, TensorRecord]) -> Iterator[tuple[str, str]]:
    """Yield the end and the name of each stored tensor of a module, except for its bias.

    Beside a stored weight, the parameters of layers inside the head (RoBERTa's ``dense``) are not parts of the matrix.
    A weight of floats is the whole matrix, unless codes or the tensors of a known quantiser are beside it. T5Gemma2
    and I-BERT have vectors of floats in the module of their embedding.
    """
    start = f"{module}."
    weight = stored.get(f"{start}weight")
    layers = (".weight", ".bias") if weight is not None else ()
    whole = weight is not None and weight.dtype in FLOATS
    for name in [name for name in stored if name.startswith(module)]:
        end = name[len(module) :]
        if end in _BESIDE:
            yield end, name
        elif end.startswith("."):
            end = end[1:]
            if end == "bias" or end.startswith(_INSIDE) or end.endswith(layers):
                continue
            known = end in (*LEAVES, *INERT_LEAVES, "pre_quant_scale") or end.startswith(_PARAMETRISED)
            if not whole or end == "weight" or stored[name].dtype not in FLOATS or known:
                yield end, name


def quantised_twin(name: str, stored: Mapping[str, TensorRecord]) -> str | None:
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


FP8_DEFAULT = "modules_to_not_convert: absent"
"""Without this list transformers leaves the head out, and no entry of the config can be corrected."""
LISTING_METHODS = frozenset({"compressed-tensors", "gptq", "awq", "bitsandbytes", "fp8"})
"""Methods whose loaders build a quantised module where the config lists it, whatever is stored."""
