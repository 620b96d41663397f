"""A checkpoint exported as an ONNX graph, and how far a graph agrees with its checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tieconv.api.evidence import inspect
from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.errors import UnreadableError
from tieconv.opened import on_disk
from tieconv.text import shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.results.exported import ExportOutcome
    from tieconv.checkpoint.results.parity import Parity
    from tieconv.onnx.export.plan import PlannedExport


def plan_export(
    path: str | Path = ".",
    *,
    precision: str = "fp32",
    head_form: str = "gemm",
    opset: int | None = None,
    provider: str = "auto",
    parity: bool = True,
) -> PlannedExport:
    """The plan that exports MODEL as an ONNX graph with every tied matrix stored once, on disk and in a session.

    ``precision`` is ``fp32``, ``fp16`` or ``bf16``, ``head_form`` as for `plan_graph_dedup`, ``provider`` where parity
    is measured. Raises `RefusedError` for a model with a finding of level error, `UnreadableError` for what
    transformers does not load, `MissingPackageError` without the packages.
    """
    from tieconv.checkpoint.results.exported import PRECISIONS
    from tieconv.checkpoint.write_plan.graph import HeadForm

    _check_choice("precision", precision, tuple(PRECISIONS))
    _check_choice("provider", provider, ("auto", "cpu", "cuda"))
    from tieconv.reference.packages import require

    modules = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "onnxruntime")
    require("exporting", "onnx,torch", *modules)
    from tieconv.onnx.export.plan import plan_export as make

    return make(inspect(on_disk(path)), precision, HeadForm(head_form), opset, provider, parity=parity)


def export(
    path: str | Path,
    out: str | Path,
    *,
    precision: str = "fp32",
    head_form: str = "gemm",
    opset: int | None = None,
    provider: str = "auto",
    parity: bool = True,
    overwrite: bool = False,
) -> ExportOutcome:
    """Export MODEL to the directory ``out``, as `plan_export` says, and measure it.

    Where parity failed or was not run, nothing is written: ``executed`` is false and ``parity`` holds the report.
    Raises as `plan_export` does, and a `TieconvError` where the export is not what it has to be.
    """
    planned = plan_export(path, precision=precision, head_form=head_form, opset=opset, provider=provider, parity=parity)
    return planned.execute(out, overwrite=overwrite)


def parity(onnx: str | Path, model: str | Path = ".", *, provider: str = "auto", reference: str = "auto") -> Parity:
    """How far the graph ``onnx`` agrees with the checkpoint ``model``: weights, structure, logits, cached steps.

    ``provider`` is ``auto``, ``cpu`` or ``cuda``; ``reference`` is the precision of the torch reference, ``float64``,
    ``float32`` or ``auto`` (float64 where it fits into memory). A missing provider gives the verdict ``not_run``.
    Raises `UnreadableError` where the graph or the model cannot be read, `MissingPackageError` without onnxruntime,
    onnx, torch or transformers.
    """
    _check_choice("provider", provider, ("auto", "cpu", "cuda"))
    _check_choice("reference", reference, ("auto", "float64", "float32"))
    from tieconv.reference.packages import require

    require("measuring parity", "onnx,torch", "torch", "transformers", "onnx", "onnx_ir", "onnxruntime")
    from tieconv.onnx.parity.validate import run_parity

    _check_graph(str(onnx))  # before MODEL, which may be the one that was left out
    refuse_graphs(model)
    evidence = inspect(on_disk(model), depth=Depth.HEADER)
    return run_parity(str(onnx), evidence, provider, reference)


def _check_graph(onnx: str) -> None:
    graph = os.path.join(onnx, "model.onnx") if os.path.isdir(onnx) else onnx
    if not os.path.lexists(graph):
        raise UnreadableError(
            f"{shown(graph)}: no such file",
            "give the graph, or a directory that holds model.onnx, and then the model: tieconv parity ONNX MODEL",
            "path.absent",
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} {value!r} is not one of {', '.join(choices)}")
