"""Quantise an export so that each tied matrix stays one."""

from __future__ import annotations

from pathlib import Path

from tieconv.checkpoint.results.exported import ExportPlan
from tieconv.errors import RefusedError
from tieconv.onnx.quantise.quantise import Quantisation, quantise
from tieconv.onnx.quantise.scheme import Scheme
from tieconv.text import shown

HEAD_NOTE = "--quantise writes every head as {}, so --head-form has no effect"
_OPERATORS = {Scheme.INT8: "MatMulNBits", Scheme.INT4: "MatMulNBits", Scheme.DYNAMIC: "MatMulInteger"}


def head_note(scheme: Scheme) -> str:
    """Return what the user should know about the form of the head."""
    return HEAD_NOTE.format(_OPERATORS[scheme])


def check_scheme(scheme: Scheme, precision: str, fuse: str | None, source: str) -> None:
    """Raise `RefusedError` if ONNX Runtime cannot run the scheme in the precision, or for a fused graph."""
    if fuse is not None:
        raise RefusedError(
            f"{shown(source)}: ONNX Runtime's quantisers skip the head of a graph that is fused for {fuse}",
            "leave out --fuse, or --quantise",
            "export.quantise",
        )
    if scheme is Scheme.DYNAMIC and precision != "fp32":
        raise RefusedError(
            f"{shown(source)}: dynamic-int8 quantises activations of float32 only, not {precision}",
            "use --precision fp32, or --quantise int8",
            "export.quantise",
        )


def quantise_tied(raw: Path, new: Path, scheme: Scheme, plan: ExportPlan, data: str) -> Quantisation:
    """Quantise the graph of ``raw`` to ``new``, with the data file ``data``.

    Raises `RefusedError` if a tied matrix would become two.
    """
    made = quantise(raw, new, scheme, data)
    if plan.tied and not made.tied:
        raise RefusedError(
            f"{shown(plan.source)}: the embedding and the head of the graph cannot read one {scheme} matrix",
            "export without --quantise",
            "export.quantise",
        )
    return made
