"""Call transformers' ONNX exporter. Only this module knows its interface, which is experimental and changes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tieconv.errors import RefusedError, TieconvError
from tieconv.execute import tree
from tieconv.install import install_command
from tieconv.onnx.export.embeds.join_graphs import join_embedding
from tieconv.onnx.export.traced.axes import name_axes
from tieconv.onnx.export.traced.position_ranges import start_ranges
from tieconv.onnx.export.traced.quick_rewrites import quick_rewrites
from tieconv.onnx.export.traced.sliding_windows import fold_windows
from tieconv.onnx.parity.graph.embedding_pair import CAUSAL
from tieconv.reference.library_messages import quiet
from tieconv.reference.packages import need
from tieconv.text import shown

TRIED = {"transformers": "5.23.0", "torch": "2.13.0", "onnx": "1.23.2", "onnxscript": "0.7.2"}
"""The versions that this adapter is tested with. It also supports transformers 5.17.0."""
_NOISE = ("pkg.torch.onnx.", "pkg.onnxscript.")
"""Metadata of the tracer: stack traces with source lines of the modelling code, as large as a small graph."""


def export_graph(
    model: Any, inputs: Mapping[str, Any], opset: int | None, fuse: str | None = None, *, batch_only: bool = False
) -> Any:
    """Trace the model with ``inputs``, with every axis dynamic; with ``batch_only`` only the first axis of each.

    ``fuse`` is the provider of ONNX Runtime for whose operators the exporter fuses attention, norms and activations.

    Returns an `ExportedModel`, or torch's `ONNXProgram` from older exporters. Raises `RefusedError` with the installed
    versions if this adapter does not support the exporter, or if the exporter fails.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    torch = need("torch", "onnx,torch", "exporting")
    with quiet(transformers), _silence(), quick_rewrites(), torch.no_grad():
        shapes = {name: {0: torch.export.Dim.AUTO} for name in inputs} if batch_only else None
        exporter, config = _exporter(dict(inputs), opset, fuse, shapes)
        try:
            made = exporter.export(model, dict(inputs), config)
        except Exception as error:
            # The tracer, the translator and the optimizer raise any exception.
            raise _failed(model, error) from error
    program = program_of(made)
    _strip(program)
    name_axes(program)
    _record(made, fold_windows(program, inputs.get("past_key_values")))
    start_ranges(program)
    return made


def embedding_graph(model: Any, opset: int | None) -> Any:
    """Return the onnx-ir graph of the model's input embedding. Raises what `export_graph` raises."""
    torch = need("torch", "onnx,torch", "exporting")
    module = model.get_input_embeddings()
    (argument, *_) = inspect.signature(module.forward).parameters
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    return program_of(export_graph(module, {argument: ids}, opset))


def read_rows(made: Any, embedding: Any, causal: int | None) -> None:
    """Put the graph ``embedding`` before the decoder ``made``, and note the token type ``causal`` in it."""
    program = program_of(made)
    join_embedding(program, embedding)
    if causal is not None:
        program.metadata_props[CAUSAL] = str(causal)


def _record(made: Any, constants: Mapping[int, int]) -> None:
    """Note the outputs that are now constants where an `ExportedModel` has those that were never tensors."""
    for component in getattr(made, "components", {}).values():
        component.metadata.out_constants = sorted([*component.metadata.out_constants, *map(list, constants.items())])


def program_of(made: Any) -> Any:
    """Return the onnx-ir graph of torch's `ONNXProgram` (transformers 5.17) or of an `ExportedModel` (5.23)."""
    for attribute, saves in (("program", "save_pretrained"), ("model", "save")):
        program = getattr(made, attribute, None)
        if hasattr(made, saves) and hasattr(program, "graph"):
            return program
    raise _moved("it returned neither an ExportedModel nor an ONNXProgram")


def save(made: Any, directory: Path) -> dict[str, Any]:
    """Write `model.onnx` and `model.onnx.data` to ``directory``, and return the exporter's document.

    The document is what transformers needs to load the graph. It is empty for an `ONNXProgram`, whose exporter has no
    loader.
    """
    with _silence():
        if not hasattr(made, "save_pretrained"):
            made.save(str(directory / "model.onnx"), external_data=True)
            return {}
        made.save_pretrained(directory)
    for name in ("model.onnx", "export.json"):
        if not (directory / name).is_file():
            raise _moved(f"it did not write {name}")
    document: dict[str, Any] = json.loads((directory / "export.json").read_text(encoding="utf-8"))
    for path in directory.iterdir():
        if not path.name.startswith("model.onnx"):
            tree.remove(path)
    return document


def _exporter(
    inputs: dict[str, Any], opset: int | None, fuse: str | None, shapes: Mapping[str, Any] | None
) -> tuple[Any, Any]:
    try:
        module = importlib.import_module("transformers.exporters")
        exporter, make = module.OnnxExporter, module.OnnxConfig
    except (ImportError, AttributeError) as error:
        raise _moved(f"it has no exporters.OnnxExporter ({shown(error, 200)})") from error
    try:
        more = ({"ort_fusions": fuse} if fuse else {}) | ({"dynamic_shapes": shapes} if shapes else {})
        config = make(dynamic=True, opset_version=opset, **more)
        inspect.signature(exporter.export).bind(None, None, inputs, config)
    except TypeError as error:
        raise _moved(f"its arguments differ ({shown(error, 200)})") from error
    try:
        return exporter(), config
    except ImportError as error:
        message = f"transformers' exporter fails to start: {shown(error, 300)}"
        raise RefusedError(message, install_command("onnx", "torch"), "export.packages") from error


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that make a graph."""
    releases = {}
    for name in (*TRIED, "onnx-ir"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases[name] = importlib.metadata.version(name)
    return releases


def _joined(releases: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in releases.items())


def _moved(why: str) -> TieconvError:
    here = versions().get("transformers", "an unknown version")
    return RefusedError(
        f"tieconv does not support the exporter of transformers {here}: {why}",
        f"use a tested version ({_joined(TRIED)}): pip install 'transformers=={TRIED['transformers']}'",
        "export.moved",
    )


def _failed(model: Any, error: Exception) -> TieconvError:
    lines = str(error).strip().splitlines() or [""]
    return RefusedError(
        f"transformers' exporter cannot export {type(model).__name__}: {type(error).__name__}: {shown(lines[0], 400)}",
        f"{tried()}; --traceback shows where it failed",
        "export.failed",
    )


def tried() -> str:
    """Return the installed versions and the tested ones, for a hint."""
    return f"installed: {_joined(versions())}; tested with: {_joined(TRIED)}"


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hide what torch, onnxscript and the exporter print and log."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _strip(program: Any) -> None:
    """Remove the tracer's metadata from the graph. Names and the module hierarchy (``namespace``) remain."""
    for graph in program.graphs():
        for node in graph:
            for owner in (node, *node.outputs):
                for key in [key for key in owner.metadata_props if key.startswith(_NOISE)]:
                    del owner.metadata_props[key]
