"""Plant a fault into a graph that a real program wrote, and judge whether `parity` and `inspect` report it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli.run import run

GRAPH = "model.onnx"


def parity(graph: Path, source: Path, case: dict[str, Any]) -> Any:
    """Run parity of ``graph`` with the checkpoint that it was made of. A second of batches is enough for a row."""
    return run("parity --budget 1s", *case["parity"].split(), graph, source)


def planted(model: Path, document: dict[str, Any], work: Path) -> Iterator[tuple[str, Path]]:
    """Yield each fault's name, and a copy of the graph in which a row of one matrix has another row's values."""
    head, embedding = document["head"]["output_head"], document["head"]["input_embedding"]
    quantised = {one["role"]: one["name"] for one in (document.get("quantised") or {}).get("matrices", ())}
    roles = {"embedding": embedding["name"], "head": head["name"] if head else None, **quantised}
    names = {name: role for role, name in roles.items() if name}
    for name, role in names.items():
        out = work / f"changed-{role}"
        if _changed(model, name, embedding["shape"][0], out):
            yield f"a changed row of the {role}" if len(names) > 1 else "a changed row of the shared table", out / GRAPH
        shutil.rmtree(out, ignore_errors=True)


def copies(document: dict[str, Any]) -> bool:
    """Whether the graph stores the table a second time."""
    states = {member["state"] for tie in document["ties"] for member in tie["members"]}
    return bool(states & {"identical", "transposed"})


def untied(graph: Path) -> bool:
    """Whether `inspect` says that the graph is not tied."""
    effect = json.loads(run("inspect --depth full --json", graph).stdout)["config"]["effect"]
    return bool(effect.startswith("Untied"))


def _changed(model: Path, name: str, rows: int, out: Path) -> bool:
    """Write the graph with the second row of ``name`` replaced by its third; False: it is no initializer."""
    import onnx
    from onnx import numpy_helper

    loaded = onnx.load(model / GRAPH if model.is_dir() else model)
    tensor = next((one for one in loaded.graph.initializer if one.name == name), None)
    if tensor is None:
        return False
    value = numpy_helper.to_array(tensor).copy()
    by_row = value.swapaxes(0, value.shape.index(rows))
    by_row[1] = by_row[2]
    tensor.CopyFrom(numpy_helper.from_array(value, name))
    out.mkdir()
    for path in model.iterdir() if model.is_dir() else ():
        if path.is_file() and not path.name.startswith(GRAPH):
            shutil.copy(path, out)
    onnx.save(loaded, out / GRAPH)
    return True
