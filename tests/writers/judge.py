"""Judge tieconv on a file that a real program wrote: what it reports, what its commands write, and what it overlooks.

Each answer is a cell. A cell is right, refused with a sentence, without a change to make, or wrong.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.cli.run import run
from tests.writers import graph_faults
from tests.writers.program import SOURCE

VERBS = {
    "untie": "untie", "retie": "retie", "dedup": "dedup", "convert to torch": "convert --to torch",
    "convert to safetensors": "convert --to safetensors", "convert to shards":
    "convert --to safetensors --max-shard-size 30KB", "set-tie auto": "set-tie auto", "reindex": "reindex",
    "bias zero": "bias zero", "bias strip": "bias strip", "resize": "resize --to config",
}  # fmt: skip
LOUD = ("error", "warning")
CHANGES = "(review first: may change the model's outputs)"
RIGHT, REFUSED, NOTHING, WRONG = "right", "refused", "nothing", "wrong"
UNKNOWN = "unknown"
ANNOUNCED = "announced"
"""The plan says that a loader gets another model, and so does `diff`. The program's own logits are equal."""
Load = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One answer: its outcome, and why."""

    question: str
    outcome: str
    why: str = ""


def judge(model: Path, facts: dict[str, Any], case: dict[str, Any], load: Load, work: Path) -> Iterator[Cell]:
    """Yield every cell of ``model``. ``load`` gives the program's logits of a model; ``work`` is an empty folder."""
    words = case["words"]
    checked = run("check --format json --fail-on warning", *words, model)
    if "refused" in case["named"]:
        told = run("inspect", *words, model)
        clean = (checked.exit_code, told.exit_code) == (2, 2) and not told.stderr.startswith("error: unexpected")
        yield Cell("inspect", REFUSED if clean else WRONG, _general(told.stderr.splitlines()[0], model))
        return
    yield _silent(checked, set(case["named"]))
    inspected = run("inspect --depth full --json", *words, model)
    if inspected.exit_code:
        yield Cell("inspect", WRONG, inspected.stderr.strip()[:300])
        return
    document = json.loads(inspected.stdout)
    yield _truth(document, facts)
    original = load(model)
    if original.get("outcome") == "error":
        why = f"the program does not read its file: {original['why']}"
        yield Cell("load", RIGHT if case["named"] else WRONG, why)  # `check` says that it is broken
        return
    if case["named"] and load(model) != original:
        yield Cell("load", RIGHT, "the program loads random values, as check says")
        return
    for verb, line in VERBS.items():
        out = work / verb.replace(" ", "-")
        yield _verb(verb, line, model, out / _file_name(model, verb) if model.is_file() else out, original, case, load)
        if not (case["parity"] and verb == "dedup"):
            shutil.rmtree(out, ignore_errors=True)
    yield from _graph_cells(model, document, case, work) if case["parity"] else _breaks(model, document, work, words)


def _silent(checked: Any, named: set[str]) -> Cell:
    if checked.exit_code not in (0, 1):
        return Cell("check", WRONG, checked.stderr.strip()[:300])
    findings = [one for entry in json.loads(checked.stdout)["models"] for one in entry["findings"]]
    loud = {one["rule"]: one["message"] for one in findings if one["level"] in LOUD}
    rules = " ".join(sorted({one["rule"] for one in findings}))
    if loud.keys() != named:
        said = "; ".join(f"{rule} {message}" for rule, message in loud.items())
        return Cell("check", WRONG, f"expected {sorted(named)}: {said}"[:400])
    return Cell("check", RIGHT, rules)


def _truth(document: dict[str, Any], facts: dict[str, Any]) -> Cell:
    """Compare what `inspect` says with the model that the program had in memory."""
    head, embedding = document["head"]["output_head"], document["head"]["input_embedding"]
    answers = {"tied": _tied(document), "embedding": embedding and embedding["name"], "head": head and head["name"]}
    wrong = [f"{key} is {facts[key]}, and tieconv says {answers[key]}" for key in facts if answers[key] != facts[key]]
    if answers["tied"] is None and wrong == [f"tied is {facts.get('tied')}, and tieconv says None"]:
        return Cell("inspect", UNKNOWN, document["config"]["effect"])
    return Cell("inspect", WRONG if wrong else RIGHT, "; ".join(wrong))


def _tied(document: dict[str, Any]) -> bool | None:
    """Return what `inspect` says first, or where it knows no class, whether two names have the same values."""
    said = document["config"]["effect"].partition(":")[0]
    if said in ("Tied", "Untied"):
        return bool(said == "Tied")
    ties = [tie for tie in document["ties"] if tie["role"] == "word_embedding"]
    states = {member["state"] for tie in ties for member in tie["members"]}
    return True if states & {"aliased", "identical", "transposed"} else False if states & {"distinct", "near"} else None


def _verb(
    verb: str, line: str, model: Path, out: Path, original: dict[str, Any], case: dict[str, Any], load: Load
) -> Cell:
    """Apply a command to ``model``; the program reads the result, and `diff` compares it with the original."""
    out.parent.mkdir(parents=True, exist_ok=True)
    written = run(line, *(case["words"] if verb != "reindex" else ()), model, "-o", out)
    last = written.stderr.strip().splitlines() or [""]
    if written.exit_code != 0:
        refused = next((text for text in last if text.startswith("error: ")), "")
        # A usage error would be a fault of this judge. "unexpected" and "please report" say that tieconv is wrong.
        fault = re.match("error: (got )?unexpected|error: no such", refused) or "please report" in written.stderr
        clean = written.exit_code == 2 and refused and not fault
        return Cell(verb, REFUSED if clean else WRONG, _general(refused or repr(written.exception), model))
    changed = "nothing to change" not in written.output
    compared = run("diff", *case["words"], model, out)
    graph = _format(out) == "onnx"  # `diff` does not read graphs
    announced = CHANGES in written.output and compared.exit_code == 1
    if compared.exit_code != 0 and not (announced or graph):
        return Cell(verb, WRONG, f"diff: {(compared.stderr + compared.stdout).strip()[:300]}")
    if case["reads"] and (case["reads"] == ["any"] or _format(out) in case["reads"]):
        loaded = load(out)
        if loaded.get("outcome") == "error":
            warned = case["loader"] and any(case["loader"] in text for text in last if "refuse" in text)
            return Cell(verb, ANNOUNCED if warned else WRONG, f"the program does not read the result: {loaded['why']}")
        if loaded["logits"] != original["logits"]:
            return Cell(verb, WRONG, f"logits differ by {_difference(loaded['logits'], original['logits'])}")
    return Cell(verb, ANNOUNCED if announced else RIGHT if changed else NOTHING)


def _file_name(model: Path, verb: str) -> str:
    """Return the name of a command's file: another format needs another suffix."""
    suffix = {"convert to torch": ".bin", "convert to safetensors": ".safetensors", "convert to shards": ".safetensors"}
    return model.name if _format(model) == verb.split()[-1] else model.with_suffix(suffix.get(verb, model.suffix)).name


def _general(text: str, model: Path) -> str:
    """Return ``text`` without what differs from one model to the next."""
    return re.sub(r"\d+(\.\d+)?(e-\d+)?", "N", text.replace(str(model), "MODEL"))[:300]


def _format(out: Path) -> str:
    files = [out] if out.is_file() else [*out.iterdir()]
    ends = {path.suffix for path in files}
    if ".onnx" in ends:
        return "onnx"
    return "safetensors" if ".safetensors" in ends else "torch" if ends & {".bin", ".pt", ".pth", ".ckpt"} else ""


def _difference(one: list[float], two: list[float]) -> str:
    return f"{np.abs(np.subtract(one, two)).max():.3g}" if len(one) == len(two) else f"{len(one)} and {len(two)} rows"


def _breaks(model: Path, document: dict[str, Any], work: Path, words: list[str]) -> Iterator[Cell]:
    """Plant each fault that fits, and yield whether tieconv reports it."""
    embedding, head = document["head"]["input_embedding"], document["head"]["output_head"]
    stored = [one["name"] for one in (embedding, head) if one and one.get("stored", True) and one["name"]]
    if not stored or not (container := _container(model, stored[-1])):
        return
    tied, has_head = _tied(document), len(stored) == 2
    broken = _copy(model, work / "changed")
    _edit(broken / container.relative_to(_root(model)), stored[-1], _change_row)
    yield _reported("a changed row", "diff", run("diff", *words, model, _named(model, broken)))
    declared = {one["value"] for one in document["config"]["declared"]}
    if has_head and tied and document["config"]["effective"] is not None and False not in declared:
        yield _reported("a changed row of a tied head", "check", run("check", *words, _named(model, broken)))
    if model.is_dir() and has_head and tied is False and document["config"]["effective"] is not None:
        broken = _copy(model, work / "removed")
        _edit(broken / container.relative_to(_root(model)), stored[-1], None)
        yield _reported("an untied head removed", "check", run("check", *words, broken))
    if model.is_dir() and not has_head and tied and declared:
        broken = _copy(model, work / "flag")
        config = json.loads((broken / "config.json").read_text())
        (broken / "config.json").write_text(json.dumps(_flag(config)))
        yield _reported("a flag of false without a head", "check", run("check", *words, broken))


def _graph_cells(model: Path, document: dict[str, Any], case: dict[str, Any], work: Path) -> Iterator[Cell]:
    """Hold the graph, and what `dedup` made of it, against their checkpoint; then plant faults into both."""
    deduped = work / "dedup" / model.name if model.is_file() else work / "dedup"
    graphs = {"": model, " after dedup": deduped} if graph_faults.copies(document) else {"": model}
    for when, graph in graphs.items():
        measured = graph_faults.parity(graph, work / SOURCE, case)
        last = next(
            (line for line in measured.stderr.splitlines() if line.startswith("error: ")), measured.output[-200:]
        )
        clean = measured.exit_code == 2 and last.startswith("error: ") and "unexpected" not in last
        why = "" if measured.exit_code == 0 else _general(last, model)
        yield Cell(f"parity{when}", RIGHT if not why else REFUSED if clean else WRONG, why)
        if why:
            continue
        told = json.loads(run("inspect --depth full --json", graph).stdout)
        for fault, broken in graph_faults.planted(graph, told, work):
            yield _reported(f"{fault}{when}", "parity", graph_faults.parity(broken, work / SOURCE, case))
            if graph_faults.copies(told):
                said = "" if graph_faults.untied(broken) else "inspect does not say Untied"
                yield Cell(f"inspected: {fault}{when}", WRONG if said else RIGHT, said)


def _reported(fault: str, command: str, result: Any) -> Cell:
    said = "" if result.exit_code == 1 else f"{command} exits with {result.exit_code}: {result.output.strip()[:200]}"
    return Cell(f"found: {fault}", RIGHT if result.exit_code == 1 else WRONG, said)


def _root(model: Path) -> Path:
    return model.parent if model.is_file() else model


def _named(model: Path, folder: Path) -> Path:
    return folder / model.name if model.is_file() else folder


def _copy(model: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_root(model), target)
    return target


def _flag(config: Any) -> Any:
    """Return the config with a tie flag of false at every level that has a flag, and at the top."""

    def lower(level: Any) -> Any:
        if not isinstance(level, dict):
            return level
        return {key: False if key == "tie_word_embeddings" else lower(value) for key, value in level.items()}

    return {**lower(config), "tie_word_embeddings": False}


def _container(model: Path, name: str) -> Path | None:
    """Return the safetensors or torch file that stores ``name``."""
    files = [model] if model.is_file() else sorted(model.iterdir())
    return next((path for path in files if name in (_tensors(path) or {})), None)


def _tensors(path: Path) -> dict[str, Any] | None:
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".bin", ".pt", ".pth"):
            made = torch.load(path, weights_only=True)
            return made if isinstance(made, dict) else None
    except Exception:  # not a file of tensors
        return None
    return None


def _edit(path: Path, name: str, change: Callable[[Any], Any] | None) -> None:
    """Replace a tensor of a file by what ``change`` makes of it, or remove it."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    tensors = _tensors(path) or {}
    value = tensors.pop(name)
    if change:
        tensors[name] = change(value.clone())
    if path.suffix != ".safetensors":
        torch.save(tensors, path)
        return
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file({key: one.contiguous() for key, one in tensors.items()}, path, metadata)
    for index in path.parent.glob("*.index.json"):
        if change is None:
            document = json.loads(index.read_text())
            document["weight_map"].pop(name, None)
            index.write_text(json.dumps(document))


def _change_row(value: Any) -> Any:
    """Return the tensor with another row in the place of its second."""
    value[1] = value[2]
    return value
