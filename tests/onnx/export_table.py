"""The figures of docs/export.md: bytes and copies of each architecture's graphs, agreement, and the forms of a head.

python -m tests.onnx.export_table --write [--optimum PYTHON] [--only NAME...]

writes docs/measured/export.json. ``--optimum`` names a Python that has optimum-onnx; without it that column is empty.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tieconv
from tests.onnx import exported
from tests.onnx.exported import ARCHITECTURES
from tests.onnx.graphs import tensors, write_optimised
from tests.onnx.head_forms import measure as head_forms

FILE = Path(__file__).parents[2] / "docs" / "measured" / "export.json"
TASKS = {"MaskedLM": "fill-mask", "ConditionalGeneration": "text2text-generation"}
OPTIMUM = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], output=sys.argv[2], task=sys.argv[3], do_validation=False)
"""


def embedding(model: Any) -> np.ndarray:
    return model.get_input_embeddings().weight.detach().numpy()


def held(directory: Path, matrix: np.ndarray) -> dict[str, int]:
    """Bytes of the graphs in a directory, and how often they store ``matrix`` and sessions of them hold it.

    A byte range that several graphs read is stored once. ``session`` is the sum over a session of each graph.
    """
    graphs = sorted(directory.glob("*.onnx"))
    data = [path for path in directory.iterdir() if path.suffix == ".onnx" or ".onnx" in path.name]
    return {
        "bytes": sum(path.stat().st_size for path in data),
        "stored": len({place for path in graphs for place in places(path, matrix)}),
        "session": sum(optimised(path, matrix) for path in graphs),
    }


def alike(path: Path, matrix: np.ndarray) -> list[str]:
    """Initializers with the values of ``matrix``, or those times one factor, as it is or transposed."""
    names = []
    for name, array in tensors(path):
        for view in (matrix, matrix.T):
            if array.shape == view.shape and array.dtype == view.dtype:
                place = np.unravel_index(np.abs(view).argmax(), view.shape)
                factor = array[place] / view[place]
                names += [name] if np.allclose(array, view * factor, rtol=1e-6, atol=0) else []
    return names


def places(path: Path, matrix: np.ndarray) -> set[tuple[str, ...]]:
    """The byte ranges with ``matrix``; a tensor inside the graph counts as a range."""
    external = {
        tensor.name: tuple(entry.value for entry in tensor.external_data)
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
    }
    return {external.get(name) or (path.name, name) for name in alike(path, matrix)}


def optimised(path: Path, matrix: np.ndarray) -> int:
    """Copies in the model that a session of the graph writes after all its optimisations."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        # Beside the graph, since what stays outside is referred to by its place.
        dump = path.parent / f"{Path(folder).name}.dump"
        try:
            return len(alike(write_optimised(path, dump), matrix))
        finally:
            dump.unlink(missing_ok=True)


def by_optimum(python: str, model: Path, out: Path, architecture: str) -> str:
    """Export with optimum in its own environment; why it could not, empty where it did."""
    task = next((task for end, task in TASKS.items() if architecture.endswith(end)), "text-generation-with-past")
    command = [python, "-c", OPTIMUM, str(model), str(out), task]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or ["no message"])[-1][:200]


def row(name: str, folder: Path, optimum: str | None) -> dict[str, Any]:
    model = make(name)
    matrix = embedding(model)
    source, raw, other = (folder / name / part for part in ("model", "raw", "optimum"))
    model.save_pretrained(source)
    found: dict[str, Any] = {"name": name, "class": type(model).__name__, "matrix": int(matrix.nbytes)}
    exported.export(model, raw)
    found["transformers"] = held(raw, matrix)
    if optimum:
        why = by_optimum(optimum, source, other, type(model).__name__)
        found["optimum"] = {"error": why} if why else held(other, matrix)
    for precision in ("fp32", "fp16"):
        found[precision] = ours(source, folder / name / precision, precision, matrix)
    return found


def make(name: str) -> Any:
    with more_models():
        return exported.make(name)


@contextlib.contextmanager
def more_models() -> Iterator[None]:
    """`exported.make` knows the models of `exported` alone."""
    before = dict(exported.MODELS)
    exported.MODELS.update(ARCHITECTURES)
    try:
        yield
    finally:
        exported.MODELS.clear()
        exported.MODELS.update(before)


def ours(source: Path, out: Path, precision: str, matrix: np.ndarray) -> dict[str, Any]:
    try:
        outcome = tieconv.export(source, out, precision=precision, provider="cpu")
    except tieconv.TieconvError as error:
        return {"error": error.message}
    assert outcome.parity is not None
    values = {gate.name: gate.value for gate in outcome.parity.gates}
    figures = [case.graph.max_abs for case in outcome.parity.cases if case.graph is not None]
    found = {
        "verdict": str(outcome.parity.verdict),
        "failed": [gate.sentence for gate in outcome.parity.gates if not gate.passed],
        "max_abs": max(figures, default=None),
        "rms_ratio": values.get("rms_ratio"),
        "proved": {name: count for proof in outcome.proofs for name, count in proof.copies},
    }
    if outcome.executed:
        found |= held(out, matrix.astype("f2") if precision == "fp16" else matrix)
    return found


def installed() -> dict[str, str]:
    names = ("transformers", "torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime")
    return {name: importlib.metadata.version(name) for name in names}


def committed() -> dict[str, Any]:
    """What was measured before."""
    if not FILE.exists():
        return {"versions": {}, "rows": [], "forms": []}
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(**parts: Any) -> None:
    """Replace these parts of the file."""
    FILE.write_text(json.dumps(committed() | parts, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--optimum")
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--forms", action="store_true", help="measure the forms of the head only")
    given = parser.parse_args()
    rows = {entry["name"]: entry for entry in committed()["rows"]}
    with tempfile.TemporaryDirectory() as folder:
        for name in () if given.forms else given.only:
            rows[name] = row(name, Path(folder), given.optimum)
            print(json.dumps(rows[name]), flush=True)
            if given.write:
                ordered = [rows[key] for key in ARCHITECTURES if key in rows]
                write(versions=installed(), rows=ordered)
        if given.forms:
            forms = head_forms(Path(folder))
            print(json.dumps(forms))
            if given.write:
                write(forms=forms)


if __name__ == "__main__":
    main()
