"""Plan the commands on ONNX graphs, export checkpoints as graphs, and measure the parity of both."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, TypedDict, Unpack

from tieconv.api.evidence import inspect, refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.value_type import check_choice
from tieconv.errors import RefusedError, UnreadableError
from tieconv.opened import on_disk
from tieconv.sources.local import locate, open_files
from tieconv.text import MODEL, OUT, Hint, call, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.graph_plan import ExportOutcome
    from tieconv.checkpoint.model_files import Listing
    from tieconv.checkpoint.results.parity import Parity
    from tieconv.onnx.child import Progress
    from tieconv.onnx.export.plan import PlannedExport
    from tieconv.onnx.write.plan import PlannedGraphs


# Recognise ONNX graphs, and plan the commands that only graphs have.


def plan_graph_dedup(path: str | Path = ".", *, head_form: str | None = None) -> PlannedGraphs:
    """Plan to store each matrix of ONNX graphs once; matrices with equal content count as one.

    ``head_form`` is ``gemm``, ``fused`` or ``transpose``. Without it, each head gets the first form that keeps every
    bit of a session's results. If none does, the matrix stays as it is. Raises `UnreadableError` for external data that
    is a link or lies outside the graph's directory. Raises `MissingPackageError` without onnx and onnx-ir.
    """
    _require_graph_packages()
    from tieconv.checkpoint.graph_plan import HeadForm
    from tieconv.onnx.write.plan import plan_graph_dedup as make

    return make(_readable(path), None if head_form is None else HeadForm(head_form))


def plan_graph_untie(path: str | Path = ".") -> PlannedGraphs:
    """Plan a separate matrix for each head of ONNX graphs that reads the embedding's matrix.

    Raises the errors of `plan_graph_dedup`.
    """
    _require_graph_packages()
    from tieconv.onnx.write.plan import plan_graph_untie as make

    return make(_readable(path))


def _require_graph_packages() -> None:
    from tieconv.reference.packages import require

    require("reading an ONNX graph", "onnx", "onnx", "onnx_ir")  # modules of `tieconv.onnx` import both


def _readable(path: str | Path) -> Listing:
    """Return the listing of a readable path. Raises `RefusedError` for a graph that no session opens."""
    from tieconv.checkpoint.model_files import REFUSED_BY_READER
    from tieconv.formats import read_checkpoint
    from tieconv.onnx.child import check_opens

    listing = locate(os.fspath(path))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
    for caution in checkpoint.cautions:
        if caution.code == REFUSED_BY_READER:
            raise RefusedError(f"nothing is written: {caution.message}", "export the model again", REFUSED_BY_READER)
    for graph in checkpoint.graphs:
        check_opens(listing.root, graph.file)
    return listing


# Export a checkpoint as an ONNX graph, and measure the parity of a graph and its checkpoint.

LAYOUT_NAMES = ("plain", "optimum", "genai", "transformers.js")
"""The values of `--layout`: the programs whose file and tensor names an export can have."""


class ExportChoices(TypedDict, total=False):
    """The options of an export; see `plan_export`."""

    precision: str
    head_form: str
    opset: int | None
    provider: str
    parity: bool
    fuse: str
    layout: str
    quantise: str | None
    inputs_embeds: bool
    budget: str | None


def plan_export(
    path: str | Path = ".",
    *,
    precision: str = "fp32",
    head_form: str = "gemm",
    opset: int | None = None,
    provider: str = "auto",
    parity: bool = True,
    fuse: str = "none",
    layout: str = "plain",
    quantise: str | None = None,
    inputs_embeds: bool = False,
    budget: str | None = None,
) -> PlannedExport:
    """Plan the export of MODEL as an ONNX graph with each tied matrix stored once, on disk and in memory.

    ``precision`` is ``fp32``, ``fp16`` or ``bf16``. ``head_form`` is as for `plan_graph_dedup`. ``provider`` and
    ``budget`` measure parity, as for `parity`. ``fuse`` is ``none``, ``cpu`` or ``cuda``. For a provider, transformers
    fuses attention, norms and activations into ONNX Runtime's operators, and the head is ``fused``. No other one runs
    such a graph. ``layout`` is ``plain``, ``optimum``, ``genai`` or ``transformers.js``: the program that loads the
    graph. ``quantise`` is ``int8``, ``int4`` or ``dynamic-int8``: embedding and head then read one quantised matrix.
    ``quantise`` needs the other two at their defaults. With ``inputs_embeds``, one graph is the input embedding and the
    other a decoder of its rows. A decoder of images or sound is always exported so. Raises `RefusedError` for a model
    with a finding of level error, and for one that the program cannot load. Raises `UnreadableError` if transformers
    does not load the model, and `MissingPackageError` if a package is not installed.
    """
    check_choice("precision", precision, ("fp32", "fp16", "bf16"))
    _check_provider(provider)
    check_choice("fuse", fuse, ("none", "cpu", "cuda"))
    check_choice("layout", layout, LAYOUT_NAMES)
    check_choice("quantise", quantise or "int8", ("int8", "int4", "dynamic-int8"))
    from tieconv.checkpoint.graph_plan import ExportOptions, HeadForm

    options = ExportOptions(
        precision=precision,
        head_form=HeadForm(head_form),
        opset=opset,
        provider=provider,
        parity=parity,
        fuse=None if fuse == "none" else fuse,
        layout=layout,
        quantise=quantise,
        inputs_embeds=inputs_embeds,
        budget=None if budget is None else seconds_of(budget),
    )
    from tieconv.reference.packages import require

    require("exporting", "onnx,torch", "torch", "transformers", "onnx", "onnx_ir", "onnxscript", "onnxruntime")
    from tieconv.onnx.export.plan import plan_export as make

    return make(inspect(on_disk(path)), options)


def export(
    path: str | Path, out: str | Path, *, overwrite: bool = False, **options: Unpack[ExportChoices]
) -> ExportOutcome:
    """Export MODEL to the directory ``out`` with the options of `plan_export`, and measure it.

    If parity fails or is not run, the function writes nothing: ``executed`` is false and ``parity`` has the report.
    Raises the errors of `plan_export`, and a `TieconvError` if the exported graph is not correct.
    """
    return plan_export(path, **options).execute(out, overwrite=overwrite)


def parity(
    onnx: str | Path,
    model: str | Path = ".",
    *,
    provider: str = "auto",
    reference: str = "auto",
    reference_device: str = "cpu",
    quantised: bool = False,
    text: str | Path | None = None,
    inputs: str | Path | None = None,
    length: int = 0,
    batch: int = 0,
    budget: str | None = None,
    timeout: float | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Compare the graph ``onnx`` with the checkpoint ``model``: weights, structure, logits, cached steps.

    ``provider`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` for the GPU with number N.
    ``reference`` is the precision of the torch reference: ``float64``, ``float32`` or ``auto`` (float64 if it fits into
    memory). ``reference_device`` is ``cpu`` or ``cuda``: the GPU of ``provider`` then computes the reference, which is
    faster for a large model. With ``quantised``, a quantised graph is compared with its own dequantised weights. Its
    loss is compared with that of a known-good quantiser. ``text`` is then a file of text or token ids for the
    perplexity. A missing provider gives the verdict ``not_run``.
    ``inputs`` is an npz file with more inputs: integer arrays (batch × sequence) by the graph's names. ``length`` and
    ``batch`` add a sequence of so many tokens, and so many rows. ``budget`` is about how long the batches may compute
    (``30s``, ``5m``), or ``full`` for all. Without it, about the time of an export, or less, and all of a quantised
    graph.
    A program that has not imported torch or ONNX Runtime measures in a child process with limits. ``timeout`` is the
    most seconds of one call of a session, and ``max_memory`` the most bytes of the process. Without them, both grow
    with the size of the graph and the model. ``progress`` is called with the stage, how much is done, and how much
    there is. A graph that exceeds one is not measured.
    Raises `UnreadableError` if the graph or the model cannot be read. Raises `MissingPackageError` without onnxruntime,
    onnx, torch or transformers.
    """
    _check_provider(provider)
    check_choice("reference", reference, ("auto", "float64", "float32"))
    check_choice("reference_device", reference_device, ("cpu", "cuda"))
    seconds = None if budget is None else seconds_of(budget)
    if text is not None and not quantised:
        raise ValueError("text needs quantised=True")
    if quantised and (inputs or length or batch):
        raise ValueError("inputs, length and batch need quantised=False")
    _require_graph_packages()
    from tieconv.onnx.child import advance, limited, limits_for

    def measured() -> Parity:
        advance("loading torch", 0, 1)
        from tieconv.reference.packages import require

        require("measuring parity", "onnx,torch", "torch", "transformers", "onnx", "onnx_ir", "onnxruntime")
        from tieconv.onnx.parity.measured_pair import Wishes, graph_file
        from tieconv.onnx.parity.validate import run_parity, run_quantised_parity

        graph = graph_file(os.fspath(onnx))
        if not os.path.lexists(graph):  # checked first, because the user may have left out MODEL
            hint = Hint("give the graph, or a directory with model.onnx, and then the model: ", _PARITY)
            raise UnreadableError(f"{shown(graph)}: no such file", hint, "path.absent")
        refuse_graphs(model)
        evidence = inspect(on_disk(model), depth=Depth.HEADER)
        if quantised and os.path.isdir(graph):
            again = call("parity", os.fspath(onnx), str(model))
            one_graph = call("export", str(model), out=OUT, quantise="int8")
            problem = f"{shown(onnx)}: --quantised measures one graph, not an encoder and a decoder"
            hint = Hint("measure the float pair: ", again, "; quantise the model as one graph: ", one_graph)
            raise RefusedError(problem, hint, "parity.quantised")
        if quantised:
            words = None if text is None else str(text)
            return run_quantised_parity(
                os.fspath(onnx), evidence, provider, reference, words, reference_device, seconds
            )
        wishes = Wishes(str(inputs) if inputs else "", length, batch, seconds)
        return run_parity(os.fspath(onnx), evidence, provider, reference, wishes, reference_device)

    return limited(
        measured, lambda: limits_for(_stored(onnx) + _stored(model), timeout, max_memory), os.fspath(onnx), progress
    )


def _stored(path: str | Path) -> int:
    """Return the bytes of the files in the directory of a graph or a model; none for a remote model."""
    folder = os.fspath(path) if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    if not os.path.lexists(path):
        return 1 << 30
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


def seconds_of(budget: str) -> float:
    """Return the seconds of ``30s``, ``5m`` or ``1h``, and infinity for ``full``. Raises `ValueError`."""
    time = re.fullmatch("([0-9]+)([smh])", budget)
    if time is None and budget != "full":
        raise ValueError(f"budget {budget!r} is not a time such as 30s or 5m, or full")
    return math.inf if time is None else int(time[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[time[2]]


_PARITY = call("parity", Hint("ONNX"), MODEL)


def _check_provider(provider: str) -> None:
    name, _, number = provider.partition(":")
    if name != "cuda" or not (number.isascii() and number.isdecimal()):
        check_choice("provider", provider, ("auto", "cpu", "cuda"))
