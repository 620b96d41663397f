"""Load files with a layer too few or too many: ``python -m tests.oracles.layer_faults LOADER PYTHON SPEC [CLASS ...]``.

PYTHON is the interpreter of an environment of `tests.oracles.environments`, and SPEC selects its rows, such as
``"vllm>=0.29"``. It prints each file with the prediction, and exits with 1 if an error was predicted and not seen.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.lazy import load_file, save_file
from tests.oracles import checkpoints
from tests.oracles.checkpoints import FAMILIES, Cell
from tests.oracles.measure import Runner
from tieconv import inspect
from tieconv.architectures.class_table import layer_lists, outside_layers

Tensors = dict[str, Any]
Change = Callable[[Tensors], object]


def without(name: str) -> tuple[str, Change]:
    """Return the loss of one tensor."""
    return f"without {name}", lambda tensors: tensors.pop(name, None)


def faults(start: str, inside: list[str]) -> Iterator[tuple[str, Change]]:
    """Yield what happens to a list of layers: the last one goes, it comes twice, or what is in them goes."""

    def last(tensors: Tensors) -> tuple[int, list[str]]:
        numbers = {int(found[1]) for name in tensors if (found := re.match(rf"{re.escape(start)}(\d+)\.", name))}
        number = max(numbers, default=-1)
        return number, [name for name in tensors if name.startswith(f"{start}{number}.")]

    def drop(tensors: Tensors) -> None:
        for name in last(tensors)[1]:
            del tensors[name]

    def repeat(tensors: Tensors) -> None:
        number, names = last(tensors)
        for name in names:
            tensors[name.replace(f"{start}{number}.", f"{start}{number + 1}.")] = tensors[name].clone()

    yield f"without the last of {start}", drop
    yield f"one more of {start}", repeat
    norms = [leaf for leaf in inside if "norm" in leaf or "ln_" in leaf]
    matrices = [leaf for leaf in inside if leaf not in norms]
    for leaf in (*norms[:1], *matrices[:1]):
        yield without(f"{start}1.{leaf}")

    def drop_expert(tensors: Tensors) -> None:
        for name in [name for name in tensors if re.match(rf"{re.escape(start)}1\..*\bexperts\.1\.", name)]:
            del tensors[name]

    yield f"without an expert of {start}", drop_expert


def main(loader: str, python: str, spec: str, *classes: str) -> int:
    """Print each file, and return how many predicted errors were not seen, at most 1."""
    runner, wrong = Runner(loader, python), 0
    for kind in classes or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            made = checkpoints.base(kind, Path(folder))
            cell = Cell(kind, (True,) * checkpoints.levels(made.family), "equal")
            every = [fault for start, _, _, inside, *_ in layer_lists(made.family) for fault in faults(start, inside)]
            every += [without(name) for group in outside_layers(made.family) for name in group]
            for number, (title, change) in enumerate([("whole", lambda tensors: None), *every]):
                model = checkpoints.write(cell, made, Path(folder) / str(number))
                tensors = load_file(model / "model.safetensors")
                change(tensors)
                save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
                row = inspect(model, consumers=spec).consumers[-1]
                seen = runner.observe(checkpoints.job(cell, made, model, number))
                shutil.rmtree(model)
                print(
                    f"{kind}, {title}: predicted {row.outcome}, saw {seen['outcome']} {seen['why']}"[:200], flush=True
                )
                if title == "whole" and seen["outcome"] in ("error", "unmatched"):
                    break  # the loader does not run the class here
                wrong += row.outcome == "error" and seen["outcome"] not in ("error", "unmatched")
    runner.close()
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
