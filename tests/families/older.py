"""What transformers 4 makes of tied names and of other spellings of them, for every class of the table that it has.

    python -m tests.families.older v448/bin/python v4/bin/python [CLASS ...]

Each class is built tiny and saved with every set of the names of its word embeddings, under each flag, and with its
embedding and its head under each name that transformers 5 takes; older.json records what 4.48.3 and 4.57.6 load.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures import zoo
from tests.consumers.grid import _bare, _flagged
from tests.families import older_loader
from tests.lazy import load_file, save_file, torch
from tieconv.architectures import class_table as table, find
from tieconv.architectures.stored_names import variants
from tieconv.checkpoint.family import Family, Role

RECORDED = Path(__file__).with_suffix(".json")
VERSIONS = ("4.48", "4.57")
FLAGS = (True, False, None)
Tensors = "dict[str, torch.Tensor]"


def names(family: Family) -> list[str]:
    """The names of the word embeddings, the canonical one first, at most four."""
    groups = [group for group in family.groups if group.role is Role.WORD_EMBEDDING]
    told = [name for group in groups for name in (group.canonical, *group.members)]
    return list(dict.fromkeys([*told, *pair(family)]))[:4]


def pair(family: Family) -> list[str]:
    """The embedding and the head."""
    assert family.input_embedding is not None and family.output_head is not None
    return [family.input_embedding, family.output_head]


def classes() -> list[str]:
    """The classes with an embedding and a head whose type transformers 4.57 has."""
    known = [family for family in (table.load(name) for name in table.names()) if family is not None]
    named = [one for one in known if one.input_embedding and one.output_head and not one.unlisted]
    whole = [one for one in named if one.default_v4 is not None]
    return [one.architecture for one in whole if one.architecture not in zoo.UNBUILDABLE]


def spellings(family: Family, stored: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each way to spell a file's names: what it is called, and the new name of each that changes."""
    embedding, head = pair(family)
    start = f"{family.prefix}."
    yield "table", {}
    yield "no prefix", {name: name.removeprefix(start) for name in stored}
    for told in (embedding, head):
        for name in list(dict.fromkeys(variants(family, told)))[1:]:
            yield name, {told: name}


class _Recorder:
    """Loads directories with both versions."""

    def __init__(self, root: Path, pythons: list[str]) -> None:
        self.folder = root / "model"
        self.folder.mkdir()
        command = [str(Path(older_loader.__file__))]
        self.workers = [
            subprocess.Popen([python, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for python in pythons
        ]

    def load(self, family: Family, config: dict[str, Any], tensors: Tensors, told: list[str]) -> list[str]:
        (self.folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        memory = [dict(family.renames).get(name, name) for name in told]
        job = {"class": family.architecture, "folder": str(self.folder), "names": told, "memory": memory}
        answers = []
        for worker in self.workers:
            assert worker.stdin is not None and worker.stdout is not None
            print(json.dumps(job), file=worker.stdin, flush=True)
            answers.append(worker.stdout.readline().strip())
        return answers


@dataclass(frozen=True)
class Cell:
    """One file: which part of the record it belongs to, and there to which word."""

    part: str
    key: str
    config: dict[str, Any]
    tensors: Tensors
    told: list[str]


def cells(family: Family, folder: Path) -> Iterator[Cell]:
    """Each set of the stored names under each flag, and each spelling of the embedding and the head."""
    zoo.build(family.architecture, tie=False).save_pretrained(folder)
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    told, bare = names(family), _bare(config)
    like = tensors[next(name for name in told if name in tensors)]
    rest = {name: tensor for name, tensor in tensors.items() if name not in told}
    for flag in FLAGS:
        flagged = _flagged(bare, family, (flag,) * (1 + bool(family.levels)))
        for held in range(1, 1 << len(told)):
            filled = {n: full(tensors.get(n, like), place) for place, n in enumerate(told) if held >> place & 1}
            yield Cell("ties", str(flag), flagged, rest | filled, told)
    whole = tensors | {name: full(tensors[name], place) for place, name in enumerate(pair(family)) if name in tensors}
    for spelled, new in spellings(family, list(whole)):
        renamed = {new.get(name, name): tensor for name, tensor in whole.items()}
        yield Cell("names", spelled, config, renamed, pair(family))


def measure(recorder: _Recorder, kind: str) -> dict[str, Any]:
    """The record of one class: letters by version, for each flag one word a set of stored names, and by spelling."""
    family = find({"architectures": [kind]})
    found: dict[str, Any] = {"ties": [{}, {}], "names": [{}, {}]}
    for cell in cells(family, recorder.folder):
        letters = recorder.load(family, cell.config, cell.tensors, cell.told)
        for one, word in zip(found[cell.part], letters, strict=True):
            one[cell.key] = f"{one.get(cell.key, '')} {word}".strip()
    return found


def full(like: torch.Tensor, place: int) -> torch.Tensor:
    """A tensor of that shape which holds the number of a place."""
    return torch.full_like(like, (place + 1) / 8)


def record(made: Mapping[str, object], path: Path | None) -> None:
    """Write a line for each class, or print them."""
    text = ",\n".join(f"{json.dumps(kind)}: {json.dumps(found)}" for kind, found in made.items())
    if path is None:
        print(text)
    else:
        path.write_text(re.sub(r" +\n", "\n", f"{{\n{text}\n}}\n"), encoding="utf-8")


def main() -> None:
    """Record every class, or print the ones that are named."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as root:
        recorder = _Recorder(Path(root), sys.argv[1:3])
        made = {kind: measure(recorder, kind) for kind in sys.argv[3:] or classes()}
    record(made, None if sys.argv[3:] else RECORDED)


if __name__ == "__main__":
    main()
