"""What transformers 5 makes of stored names, for every class of the table that can be built.

    python -m tests.families.newer [CLASS ...]

To the files of older.py come tied names that are equal, or equal but for one, flags that differ between the levels of
the config, names that all carry the prefix once more, and each set of the head's biases. newer.json records what the
installed transformers loads: for each name the place of the one whose values it has, ``r`` where they are random and
reported as missing, ``q`` where nothing says so; each ``'`` after a place tells one more parameter of these values;
``-`` stands for a name that the model has not, and ``x`` for a file that is refused.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixtures import zoo
from tests.consumers.grid import _bare, _flagged
from tests.families import older, older_loader
from tests.families.older import Cell, Tensors
from tests.lazy import load_file, save_file, torch, transformers
from tieconv.architectures import class_table as table, find
from tieconv.checkpoint.family import Family

RECORDED = Path(__file__).with_suffix(".json")


def classes() -> list[str]:
    """The classes with an embedding and a head that can be built."""
    known = (family for name in table.names() if (family := table.load(name)) is not None)
    whole = (one.architecture for one in known if one.input_embedding and one.output_head and not one.unlisted)
    return [name for name in whole if name not in zoo.UNBUILDABLE]


def flags(family: Family) -> list[tuple[bool | None, ...]]:
    """The values of the flag at each level, where they are not the same at all of them."""
    found = itertools.product(older.FLAGS, repeat=1 + bool(family.levels))
    return [values for values in found if len(set(values)) > 1]


def cells(family: Family, folder: Path) -> Iterator[Cell]:
    """The files of one class."""
    yield from older.cells(family, folder)
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    bare = _bare(config)
    for flag in older.FLAGS[:2]:
        flagged = _flagged(bare, family, (flag,) * (1 + bool(family.levels)))
        yield from _equal(family, str(flag), flagged, tensors)
        yield from _biased(family, str(flag), flagged, tensors)
    yield from _levels(family, bare, tensors)
    if family.prefix:
        whole = tensors | _places(tensors, older.pair(family))
        prefixed = {f"{family.prefix}.{name}": tensor for name, tensor in whole.items()}
        yield Cell("names", "all prefixed", config, prefixed, older.pair(family))


def _places(tensors: Tensors, told: list[str]) -> Tensors:
    """Those names that are stored, each filled with the number of its place."""
    return {name: older.full(tensors[name], place) for place, name in enumerate(told) if name in tensors}


def _equal(family: Family, flag: str, config: dict[str, Any], tensors: Tensors) -> Iterator[Cell]:
    """All tied names with one value, and all but one; the place that they share is the first that is not apart."""
    told = older.names(family)
    like = next(tensors[name] for name in told if name in tensors)
    for apart in (None, *told) if len(told) > 2 else (None,):
        shared = int(apart == told[0])
        filled = {
            name: older.full(tensors.get(name, like), place if name == apart else shared)
            for place, name in enumerate(told)
        }
        key = flag if apart is None else f"{flag} {told.index(apart) + 1}"
        yield Cell("equal", key, config, tensors | filled, told)


def _biased(family: Family, flag: str, config: dict[str, Any], tensors: Tensors) -> Iterator[Cell]:
    """Each set of the names of the head's bias."""
    told = list(family.output_biases)
    rest = {name: tensor for name, tensor in tensors.items() if name not in told}
    like = next((tensors[name] for name in told if name in tensors), None)
    for held in range(1 << len(told)) if like is not None else ():
        filled = {name: older.full(like, place) for place, name in enumerate(told) if held >> place & 1}
        yield Cell("biases", flag, config, rest | filled, told)


def _levels(family: Family, bare: dict[str, Any], tensors: Tensors) -> Iterator[Cell]:
    """Levels that disagree, of a file with the embedding alone and of one with a head too."""
    told = older.names(family)
    for values in flags(family):
        flagged = _flagged(bare, family, values)
        for kept in ([name for name in told if name != family.output_head], told):
            rest = {name: tensor for name, tensor in tensors.items() if name not in told}
            held = {name: tensor for name, tensor in _places(tensors, told).items() if name in kept}
            yield Cell("levels", " ".join(map(str, values)), flagged, rest | held, told)


def seen(family: Family, folder: Path, told: list[str]) -> str:
    """The letters of what `from_pretrained` makes of a directory."""
    memory = [dict(family.renames).get(name, name) for name in told]
    try:
        kind: Any = zoo.model_class(family.architecture)
        model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    except Exception:  # the classes fail in their own ways
        return "x"
    tensors = older_loader.held(model, {"memory": memory, "names": told})
    missing = set(info["missing_keys"]) | {key[0] for key in info["mismatched_keys"]}
    parameters: dict[str, list[Any]] = {}
    letters = ""
    for name, other, tensor in zip(told, memory, tensors, strict=True):
        letter = "-" if tensor is None else older_loader.letter(tensor, len(told))
        if letter == "r" and not {name, other} & missing:
            letter = "q"
        letters += letter + "'" * _copies(parameters.setdefault(letter, []), tensor) * letter.isdigit()
    return letters


def _copies(parameters: list[Any], tensor: Any) -> int:
    """The place of a parameter among those with its values, to which it is added."""
    if not any(tensor is other for other in parameters):
        parameters.append(tensor)
    return next(place for place, other in enumerate(parameters) if other is tensor)


def measure(kind: str, root: Path) -> dict[str, dict[str, str]]:
    """The record of one class: by part and key, one word a file."""
    family, folder = find({"architectures": [kind]}), root / "model"
    folder.mkdir()
    found: dict[str, dict[str, str]] = {}
    for cell in cells(family, root / "built"):
        (folder / "config.json").write_text(json.dumps(cell.config))
        save_file(cell.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        one = found.setdefault(cell.part, {})
        one[cell.key] = f"{one.get(cell.key, '')} {seen(family, folder, cell.told)}".strip()
    return found


def main() -> None:
    """Record every class, or print the ones that are named."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    made = {}
    for kind in sys.argv[1:] or classes():
        with tempfile.TemporaryDirectory() as root:
            made[kind] = measure(kind, Path(root))
    older.record(made, None if sys.argv[1:] else RECORDED)


if __name__ == "__main__":
    main()
