"""Models of a class on another text part than its own, as files, and what tieconv and the loaders make of them.

    python -m tests.composites.pairs [--v4 PYTHON] [CLASS[LEVEL=TYPE] ...]
    python -m tests.composites.pairs --classes      every class and model type of the installed release instead

Each pair is built tiny and saved by transformers 5 with the class's default flags, tied and untied; to the tied one
come a copy of the head and a head of its own, from the untied one the head is taken away. `check` must pass what was
saved, and what is predicted for transformers 5 and 4.57 must be what they load. Without pairs all of them are tried,
and docs/measured/pairs.json gets the counts, with --classes classes.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tieconv as api
from fixtures import families, zoo
from tests.lazy import load_file, save_file, torch, transformers
from tests.oracles import run_transformers as loader
from tieconv.architectures import find
from tieconv.checkpoint.family import Family, Role
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.registry import CONSUMERS

ROOT = Path(__file__).parents[2]
COUNTS = ROOT / "docs" / "measured" / "pairs.json"
CLASSES = COUNTS.with_name("classes.json")
MEASURED = ROOT / "docs" / "measured" / "composites.json"
_NEEDS = {"Qwen2_5OmniForConditionalGeneration": "spk_dict.pt"}
"""Files that a class cannot be loaded without."""
SAVED = ("default", "tied", "untied")
SIZES = {"d_model", "n_embd", "hidden_size", "encoder_layers", "n_layer", "num_layers", "num_hidden_layers"}


def specs() -> list[str]:
    """Every pair that was measured, as ``Class[level=type]``."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))
    return [f"{name}[{key}]" for name, row in rows.items() if name for key in row["measured"]]


def family(spec: str) -> Family:
    """What tieconv knows of a pair, by the config alone."""
    kind = zoo.model_class(spec).__name__
    return find({**zoo.tiny_config(spec).to_dict(), "architectures": [kind]})


def resized(spec: str, folder: Path) -> list[str]:
    """Sizes of the text part that transformers 5 changes when it reads back the config that it saved.

    GLM-ASR and Voxtral put defaults of their own into a config of any type: such a file does not load as it was saved.
    """
    chosen = zoo.pair(spec)
    assert chosen is not None
    config = zoo.tiny_config(spec)
    config.save_pretrained(folder)
    first, second = (one.to_dict()[chosen[1]] for one in (config, type(config).from_pretrained(folder)))
    return sorted(key for key in SIZES & first.keys() if first[key] != second[key])


def states(spec: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The directories of one pair; a flag that the class refuses leaves its directories out."""
    for state, tie in zip(SAVED, (None, True, False), strict=True):
        try:
            zoo.build(spec, tie=tie).save_pretrained(folder / state)
        except AttributeError:  # the flag names a table that the text part does not have
            continue
        if spec in _NEEDS:
            torch.save({}, folder / state / _NEEDS[spec])
        yield state, folder / state
    known = family(spec)
    if (folder / "tied").exists() and _head(known) and known.input_embedding:
        yield from _changed(known, folder)


def _changed(known: Family, folder: Path) -> Iterator[tuple[str, Path]]:
    head = known.output_head
    tied, untied = (load_file(folder / state / "model.safetensors") for state in ("tied", "untied"))
    canonical = next((group.canonical for group in known.groups if head in group.members), None)
    if head is None or canonical is None or head not in untied or canonical not in tied:
        return
    yield "copy of the head", _written(folder / "copy", folder / "tied", tied | {head: tied[canonical].clone()})
    yield "tied, own head", _written(folder / "own", folder / "tied", tied | {head: untied[head]})
    without = {name: tensor for name, tensor in untied.items() if name != head}
    yield "untied, no head", _written(folder / "none", folder / "untied", without)


def _written(folder: Path, config: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    for path in (config / "config.json", *config.glob("*.pt")):
        shutil.copy(path, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _head(known: Family) -> bool:
    return known.output_head is not None and known.output_head != known.input_embedding


def job(spec: str, known: Family, folder: Path) -> dict[str, Any]:
    """What a loader needs to know of a directory."""
    memory = dict(known.renames)
    words = (group for group in known.groups if group.role is Role.WORD_EMBEDDING)
    names = {name for group in words for name in (group.canonical, *group.members)}
    others = sorted(names - {known.input_embedding, known.output_head})
    return {
        "id": 0,
        "class": zoo.model_class(spec).__name__,
        "folder": str(folder),
        "embedding": known.input_embedding,
        "head": known.output_head,
        "tables": [memory.get(name, name) for name in others],
        "stored": others,
        "biases": list(known.output_biases),
        "inner": families.INNER.get(known.architecture, ""),
    }


def predictions(inspection: Inspection) -> dict[str, tuple[str, list[str]]]:
    """What is predicted of transformers 5 and 4.57."""
    judges = {one.version: one for one in CONSUMERS if one.name == "transformers" and one.version in ("5.x", "4.57")}
    found = {version: judge.predict(inspection) for version, judge in judges.items()}
    return {version: (str(one.outcome), sorted(one.dropped)) for version, one in found.items()}


class Older:
    """transformers 4.57 in another interpreter."""

    def __init__(self, python: str) -> None:
        command = [python, str(Path(loader.__file__))]
        self.worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def observe(self, one: dict[str, Any]) -> dict[str, Any]:
        """What it makes of a job."""
        assert self.worker.stdin is not None and self.worker.stdout is not None
        print(json.dumps(one), file=self.worker.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.worker.stdout.readline())
        return answer


def wrong(spec: str, folder: Path, older: Older | None = None, counts: Counter[str] | None = None) -> list[str]:
    """What is not as it was predicted, and each finding of `check` on what transformers saved."""
    found, counted, known = [], Counter[str]() if counts is None else counts, family(spec)
    for state, path in states(spec, folder):
        inspection = api.inspect(path)
        if state in SAVED:
            counted["checked"] += 1
            found += [f"{state}: {f.rule} {f.level} {f.message}" for f in inspection.findings if f.level != "note"]
        one, expected = job(spec, known, path), predictions(inspection)
        seen = {"5.x": loader.observe("transformers", one)} | ({"4.57": older.observe(one)} if older else {})
        for version, answer in seen.items():
            if answer.get("why", "").startswith("ImportError"):  # the class needs a package that is not installed
                counted["not loaded"] += 1
                continue
            outcome, dropped = expected[version]
            agrees = outcome in ("unknown", answer["outcome"]) and (
                outcome in ("unknown", "error") or dropped == answer["dropped"]
            )
            counted[f"{version} {'unknown' if outcome == 'unknown' else 'agrees' if agrees else 'differs'}"] += 1
            if not agrees:
                found.append(f"{state}, {version}: predicted {outcome} {dropped}, {answer}")
    return found


def quiet() -> None:
    """No warnings and no progress bars of the libraries."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


def main() -> None:
    """Try every pair, or the ones that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--v4", metavar="PYTHON", help="an interpreter with transformers 4.57")
    parser.add_argument("--classes", action="store_true", help="every class and model type of the release, not pairs")
    parser.add_argument("pairs", nargs="*")
    options = parser.parse_args()
    quiet()
    older, counts, lines = Older(options.v4) if options.v4 else None, Counter[str](), list[str]()
    for spec in options.pairs or (families.newer_release({})[0] if options.classes else specs()):
        with tempfile.TemporaryDirectory() as folder:
            counts["pairs"] += 1
            if zoo.pair(spec) and resized(spec, Path(folder) / "config"):
                counts["not loaded as saved"] += 1
                continue
            try:
                for line in wrong(spec, Path(folder), older, counts):
                    lines.append(f"{spec} {line}")
                    print(lines[-1], flush=True)
            except Exception as error:
                if not options.classes:
                    raise
                counts["not judged"] += 1  # no embedding or no head, or no tiny config
                print(f"{spec} was not judged: {error}", flush=True)
    print(json.dumps(counts))
    if options.classes and not options.pairs:
        kept = {"transformers": transformers.__version__, **counts, "wrong": lines}
        CLASSES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    elif not options.pairs:
        COUNTS.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
