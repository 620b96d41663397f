"""Every verb on one tied model in one layout, each result judged by reloading it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import tieconv
from tests.lazy import torch
from tests.reload.judge import Loaded, changed_files, differences, head_factor, load
from tests.reload.layouts import SHARD, Subject
from tieconv.errors import RefusedError
from tieconv.planned import PlannedWrite

EXACT, REFUSED, UNREACHED, WRONG = "exact", "refused: ", "not reached", "wrong: "
KEPT, UNJUDGED = "exact, a copy stays", "not judged: "
SOURCE, DISTINCT = "source", "source with a head of its own"


class Head(Enum):
    """Whether the loaded head is the input embedding."""

    AS_BEFORE = auto()
    SEPARATE = auto()
    EITHER = auto()


@dataclass(frozen=True)
class Step:
    """One verb: which result it starts from (the first that exists), and what must hold of what it writes."""

    verb: str
    starts: tuple[str, ...]
    plan: Callable[[Path, str], PlannedWrite]
    head: Head = Head.AS_BEFORE
    restores: bool = False  # the files are those of the source again, config.json aside
    copies: bool = False  # more tensors are stored than before

    def origin(self) -> str:
        """What the function is compared with."""
        return DISTINCT if self.starts == (DISTINCT,) else SOURCE


def _format(layout: str) -> str:
    return "torch" if layout.startswith("bin") else "safetensors"


def _convert(path: Path, to: str, layout: str) -> PlannedWrite:
    return tieconv.plan_convert(to, path, max_shard_size=SHARD if layout.endswith("sharded") else "5GB")


def _other(layout: str) -> str:
    return "safetensors" if _format(layout) == "torch" else "torch"


COPIES = "untie --keep-flag"
STEPS = (
    Step("untie", (SOURCE,), lambda path, _: tieconv.plan_untie(path), head=Head.SEPARATE, copies=True),
    Step(COPIES, (SOURCE,), lambda path, _: tieconv.plan_untie(path, keep_flag=True), copies=True),
    Step("retie", ("untie", COPIES), lambda path, _: tieconv.plan_retie(path), restores=True),
    Step("dedup", (COPIES, SOURCE), lambda path, _: tieconv.plan_dedup(path), restores=True),
    Step("set-tie auto", (SOURCE,), lambda path, _: tieconv.plan_set_tie("auto", path)),
    Step("set-tie false", (COPIES,), lambda path, _: tieconv.plan_set_tie("false", path), head=Head.SEPARATE),
    Step("set-tie true", ("set-tie false",), lambda path, _: tieconv.plan_set_tie("true", path)),
    Step("convert", (SOURCE,), lambda path, layout: _convert(path, _other(layout), layout)),
    Step("convert back", ("convert",), lambda path, layout: _convert(path, _format(layout), layout)),
    # Asked for what could change the function: refused, or shown not to.
    Step("set-tie false, tied file", (SOURCE,), lambda path, _: tieconv.plan_set_tie("false", path), head=Head.EITHER),
    Step("set-tie true, heads differ", (DISTINCT,), lambda path, _: tieconv.plan_set_tie("true", path)),
    Step("retie, heads differ", (DISTINCT,), lambda path, _: tieconv.plan_retie(path)),
)
_TENSOR = re.compile(r"\b(?:\w+\.)+\w*[A-Za-z_]\w*\b|\b\w+_(?:bias|weight|head)\b")
_NUMBER = re.compile(r"they differ in (?:rows? [\d–, ]+ of [\d,]+|[\d,]+ of [\d,]+ rows), by at most [\d.e+-]+")
VERBS = tuple(step.verb for step in STEPS)


@dataclass
class Walk:
    """One subject in one layout. Directories with equal bytes are loaded once."""

    subject: Subject
    layout: str
    folder: Path
    results: dict[str, Path] = field(default_factory=dict)
    seen: dict[str, Loaded] = field(default_factory=dict)

    def run(self) -> dict[str, str]:
        """Verb -> ``exact``, ``refused: reason``, ``not reached``, or ``wrong: what changed``."""
        self.results[SOURCE] = self.subject.save(self.folder / "source", self.layout)
        self.results[DISTINCT] = self.subject.save(self.folder / "distinct", self.layout, tie=False)
        try:
            for name in (SOURCE, DISTINCT):
                self._load(self.results[name])
        except RuntimeError as error:
            return dict.fromkeys(VERBS, f"{UNJUDGED}transformers does not load what it starts from: {error}"[:200])
        return {step.verb: self._verdict(step) for step in STEPS}

    def _verdict(self, step: Step) -> str:
        start = next((self.results[name] for name in step.starts if name in self.results), None)
        if start is None:
            return UNREACHED
        out = self.folder / step.verb.replace(" ", "-").replace(",", "")
        try:
            plan = step.plan(start, self.layout)
            plan.execute(out)
        except RefusedError as error:
            return REFUSED + self._general(error.message, start)
        except tieconv.TieconvError as error:
            return WRONG + self._general(f"{type(error).__name__}: {error.message}", start)
        found = self._found(step, out)
        if found:
            return WRONG + "; ".join(found)
        self.results[step.verb] = out
        # Of two names that some loader needs both, dedup keeps both.
        return KEPT if step.verb == "dedup" and stored(out) > stored(self.results[SOURCE]) else EXACT

    def _found(self, step: Step, out: Path) -> list[str]:
        before = self._load(self.results[step.origin()])
        try:
            after = self._load(out)
        except Exception as error:  # whatever the loader raises is the finding
            return [f"does not load: {type(error).__name__}: {error}"[:200]]
        factor = head_factor(self.subject.name) if step.verb == "untie" else 1.0
        shares = {Head.AS_BEFORE: before.shares_head, Head.SEPARATE: False, Head.EITHER: None}[step.head]
        found = differences(before, after, shares_head=shares, head_factor=factor)
        if step.restores and stored(out) == stored(self.results[SOURCE]):
            found += [f"{name} differs from the first" for name in changed_files(self.results[SOURCE], out)]
        if step.restores and step.verb != "dedup" and stored(out) > stored(self.results[SOURCE]):
            found.append("a copy stays")
        if step.copies and stored(out) <= stored(self.results[SOURCE]):
            found.append("no copy was written")
        return found

    def _load(self, folder: Path) -> Loaded:
        key = _bytes(folder)
        if key not in self.seen:
            self.seen[key] = load(self.subject.name, folder)
        return self.seen[key]

    def _general(self, message: str, start: Path) -> str:
        text = message.replace(str(start), "MODEL").replace(self.subject.name, "CLASS")
        return _NUMBER.sub("…", _TENSOR.sub("TENSOR", text))


def _bytes(folder: Path) -> str:
    total = hashlib.blake2b()
    for path in sorted(folder.iterdir()):
        total.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return total.hexdigest()


def stored(folder: Path) -> int:
    """How many tensors a directory stores: names of one storage count once."""
    count = 0
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            data = path.read_bytes()
            count += len(_header(data))
        elif path.suffix == ".bin":
            state = torch.load(path, weights_only=True)
            count += len({tensor.untyped_storage().data_ptr() for tensor in state.values()})
    return count


def _header(data: bytes) -> Mapping[str, object]:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: value for name, value in header.items() if name != "__metadata__"}
