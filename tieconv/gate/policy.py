"""Decide what counts: apply selection, settings and baseline to the findings of models."""

from __future__ import annotations

import glob
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, Waiver
from tieconv.checkpoint.value_type import record
from tieconv.errors import MALFORMED, SettingsError
from tieconv.formats.strict_json import parse_json
from tieconv.gate.model_sources import is_weight, passed_over
from tieconv.gate.settings import (
    ALL,
    OWN,
    SHARED,
    ModelIgnore,
    Selection,
    Settings,
    longest,
    matches,
    parse_settings,
    rules,
    selectors,
)
from tieconv.sources import is_remote
from tieconv.sources.user_files import read_text, upward
from tieconv.text import count, in_words, shell_word, shown

# Read and write baselines: findings that existed when the gate was introduced do not count, new ones do.


SCHEMA = "tieconv.baseline/1"
MAX_SIZE = 16 << 20
"""Largest baseline in bytes: more than 50,000 findings."""
_DEPTHS = tuple(Depth)
_NAMED = 4
"""The most models that a note names."""


@record
class Entry:
    """One known finding. ``model`` is relative to the baseline file. Numbers in the message are not compared."""

    model: str
    rule: str
    file: str
    tensors: tuple[str, ...]


@record
class Baseline:
    """The entries of the file at ``path``, and the depth at which they were found."""

    path: str
    depth: Depth
    entries: tuple[Entry, ...]

    def relative(self, model: str) -> str:
        """Return how the file writes the model at the absolute path ``model``."""
        return relative(model, self.path)

    def of(self, source: str) -> Counter[Entry]:
        """Return the entries of one model. An entry that is listed twice covers two findings."""
        model = self.relative(source)
        return Counter(entry for entry in self.entries if entry.model == model)


def relative(model: str, path: str) -> str:
    """Return how the baseline file at ``path`` writes the model at the absolute path ``model``."""
    if "://" in model:
        return model
    return os.path.relpath(model, os.path.dirname(os.path.abspath(path))).replace(os.sep, "/")


def entry_of(model: str, finding: CheckedFinding) -> Entry:
    """Return the baseline entry of a finding."""
    return Entry(model, finding.finding.rule, finding.file, tuple(sorted(finding.finding.tensors)))


def covers(now: Depth, then: Depth) -> bool:
    """Return whether ``now`` reads at least as much as ``then``. If so, a finding that is missing is fixed."""
    return _DEPTHS.index(now) >= _DEPTHS.index(then)


def parse_baseline(text: str, path: str) -> Baseline:
    """Return the baseline in ``text``. Raises `SettingsError` if it is not a baseline."""
    try:
        document: Any = parse_json(text.encode(), MAX_SIZE)
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']}")
        return Baseline(path, Depth(document["depth"]), tuple(map(_entry, document["entries"])))
    except MALFORMED as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        problem = f"{shown(path)} is not a {SCHEMA} file: {shown(reason)}"
        raise SettingsError(problem, "write one with --write-baseline FILE", "baseline.malformed") from error


def _entry(value: dict[str, object]) -> Entry:
    model, rule, file, tensors = (value[key] for key in ("model", "rule", "file", "tensors"))
    if not isinstance(tensors, list) or not all(isinstance(text, str) for text in (model, rule, file, *tensors)):
        raise ValueError("an entry has a value of the wrong type")
    return Entry(str(model), str(rule), str(file), tuple(tensors))


# Decide what counts: apply selection, settings and baseline to the findings of models.


@record
class Policy:
    """Everything that decides whether a finding counts. Models are identified by absolute path.

    ``searched`` are the directories of which every model is checked.
    """

    selection: Selection
    settings: Settings
    fail_on: Level
    depth: Depth
    consumers: str | None = None
    baseline: Baseline | None = None
    searched: tuple[str, ...] = ()

    def judge(self, model: CheckedModel, location: str) -> CheckedModel:
        """Return the model with only the selected findings, each with its waiver."""
        known = self.baseline.of(location) if self.baseline else Counter[Entry]()
        selected = [entry for entry in model.findings if self.selection.runs(entry.finding.rule)]
        return replace(model, findings=tuple(self._judged(entry, location, known) for entry in selected))

    def _judged(self, entry: CheckedFinding, location: str, known: Counter[Entry]) -> CheckedFinding:
        waiver = self._ignored(entry.finding.rule, location) or self._known(entry, location, known)
        return replace(entry, waiver=waiver)

    def _ignored(self, code: str, location: str) -> Waiver | None:
        selector = self.selection.ignored_by(code)
        if selector is not None:
            return Waiver("ignore", f"{selector} is ignored")
        for _, ignore in self._about(location):
            if longest(ignore.ignore, code):
                return Waiver("model", ignore.reason)
        return None

    def _known(self, entry: CheckedFinding, location: str, known: Counter[Entry]) -> Waiver | None:
        if self.baseline is None:
            return None
        key = entry_of(self.baseline.relative(location), entry)
        if not known[key]:
            return None
        known[key] -= 1
        return Waiver("baseline", shown(self.baseline.path))

    def _about(self, location: str) -> Iterator[tuple[int, ModelIgnore]]:
        for number, ignore in enumerate(self.settings.per_model):
            if matches(ignore.model, location, self.settings.folder):
                yield number, ignore

    def notes(self, models: Mapping[str, CheckedModel]) -> Iterator[str]:
        """Yield notes on settings that are ignored, and on settings and baseline entries that match nothing.

        ``models`` are keyed by location.
        """
        yield from self.settings_notes()
        met = {number for location in models for number, _ in self._about(location)}
        for number, ignore in enumerate(self.settings.per_model):
            start = os.path.join(self.settings.folder, os.path.dirname(re.split(r"[*?[]", ignore.model)[0]))
            if number not in met and not set(self.searched).isdisjoint(upward(os.path.realpath(start))):
                yield f"{shown(self.settings.path)}: no checked model matches {shown(ignore.model)}"
        reasons: dict[str, list[str]] = {}
        for path, why in (entry for root in self.searched for entry in passed_over(root)):
            if os.path.realpath(path) not in models:
                reasons.setdefault(why, []).append(os.path.relpath(path))
        yield from (f"not checked: {in_words(paths, _NAMED)}; {why}" for why, paths in reasons.items())
        read = {location: model for location, model in models.items() if model.failure is None}
        if self.depth is not Depth.HEADER:  # without a comparison no finding is known to be fixed
            yield from self._unused(read)
            unread = [model for model in read.values() if model.unread]
            if unread:
                more = f" and of {count(len(unread) - 1, 'more model')}" if unread[1:] else ""
                names = ", ".join(shown(name) for name in unread[0].unread[:3])
                samples = self.depth is not Depth.FULL and is_remote(unread[0].source)
                remedy = "compare every byte with --depth full" if samples else "tieconv inspect says why"
                yield f"{names} of {shown(unread[0].source)}{more}: not compared; {remedy}"
            left = [model.not_compared for model in read.values() if model.not_compared]
            if left:
                where = "" if len(read) == 1 else f" of {count(len(left), 'model')}"
                yield f"Only tied tensors were compared. --depth full compares the other {sum(left):,}{where}."
        fixed = sum(self._fixed(location, model) for location, model in read.items())
        if self.baseline is None:
            return
        deleted = sum(self._is_deleted(entry, self.baseline.path) for entry in self.baseline.entries)
        for number, state in ((fixed, "fixed"), (deleted, "of deleted models")):
            if number:
                entries = "1 entry of the baseline is" if number == 1 else f"{number:,} entries of the baseline are"
                path = shell_word(self.baseline.path)
                yield f"{entries} {state}: update the baseline with --write-baseline {path}"

    def settings_notes(self) -> Iterator[str]:
        """Yield a note on each settings file that is ignored."""
        for path in self.settings.ignored_files:
            where = shell_word(os.path.relpath(path))
            yield f"{where} is inside the model directory, so it is ignored; to use it: --config {where}"

    def _unused(self, read: Mapping[str, CheckedModel]) -> Iterator[str]:
        used: set[tuple[int, str]] = set()
        met: set[int] = set()
        for location, model in read.items():
            for number, ignore in self._about(location):
                met.add(number)
                selectors = (longest(ignore.ignore, entry.finding.rule) for entry in model.findings)
                used |= {(number, selector) for selector in selectors if selector}
        for number, ignore in enumerate(self.settings.per_model):
            for selector in ignore.ignore:
                if number in met and (number, selector) not in used and self._could_run(selector):
                    yield (
                        f"{shown(self.settings.path)}: ignoring {selector} for {shown(ignore.model)} has no effect: "
                        "no finding matches"
                    )

    def _could_run(self, selector: str) -> bool:
        """Return whether a rule that the selector covers runs. If none runs, an unused entry proves nothing."""
        codes = [rule.code for rule in rules() if longest((selector,), rule.code)]
        return any(self._looked_for(code) for code in codes)

    def _looked_for(self, code: str) -> bool:
        return self.selection.runs(code) and (self.consumers is not None or not code.startswith("CON"))

    def _fixed(self, location: str, model: CheckedModel) -> int:
        if self.baseline is None or not covers(self.depth, self.baseline.depth):
            return 0
        name = self.baseline.relative(location)
        known = Counter(entry for entry in self.baseline.of(location).elements() if self._looked_for(entry.rule))
        return (known - Counter(entry_of(name, entry) for entry in model.findings)).total()

    def _is_deleted(self, entry: Entry, path: str) -> bool:
        """Return whether the model of an entry in the baseline at ``path`` is gone from a searched directory."""
        model = os.path.join(os.path.dirname(os.path.abspath(path)), entry.model)
        if "://" in entry.model or os.path.lexists(model):
            return False
        return not set(self.searched).isdisjoint(upward(os.path.realpath(model)))

    def debt(self, models: Mapping[str, CheckedModel], path: str, old: Baseline | None) -> str:
        """Return the text of a baseline at ``path``: findings that count, or that a baseline waived.

        It keeps entries of ``old``, the file's former content, that this run could not confirm as fixed. These are
        entries of other models, of rules that did not run, and of a deeper inspection. Deleted models have none.
        """
        names = {location: relative(location, path) for location in models}
        now = Counter(
            entry_of(names[location], entry)
            for location, model in models.items()
            for entry in model.findings
            if entry.waiver is None or entry.waiver.by == "baseline"
        )
        kept_entries: Counter[Entry] = Counter()
        depth = self.depth
        if old is not None:
            deeper = not covers(depth, old.depth)
            depth = old.depth if deeper else depth
            checked = set(names.values())
            kept_entries.update(
                entry
                for entry in old.entries
                if (deeper or entry.model not in checked or not self._looked_for(entry.rule))
                and not self._is_deleted(entry, path)
            )
        # Sorted, so that a text diff shows only what changed.
        ordered = sorted(
            (kept_entries | now).elements(), key=lambda entry: (entry.model, entry.rule, entry.file, entry.tensors)
        )
        document = {"schema": SCHEMA, "depth": str(depth), "entries": [asdict(entry) for entry in ordered]}
        return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


# Make a policy from the command's options, the settings file and the baseline.


_SETTINGS_LIMIT = 1 << 20
DEFAULT_LEVEL = Level.WARNING


_MODEL_FILES = frozenset({
    "config.json", "adapter_config.json", "generation_config.json", "model_index.json", "modules.json", "params.json",
    "tokenizer.json", "tokenizer_config.json", "trainer_state.json",
})  # fmt: skip
"""Documents that mark a directory as a model, also if its weights are in subdirectories."""
_PARTS = re.compile(
    r"(checkpoint|step|epoch|iter|global_step|version)[-_]?\d.*|onnx|gguf|original|openvino", re.IGNORECASE
)
"""Names of directories that belong to the model above them: checkpoints of a run, and exports."""


def find_settings(models: Iterable[str], start: str | None = None) -> Settings:
    """Return the nearest settings from ``start`` (the working directory) up to the root of its repository.

    Outside a repository only ``start`` counts: anyone may write to a directory above it, such as `/tmp`. The search
    passes over a settings file that may have come with a model. Such a file is inside a checked model, or in or below a
    directory with model files. A model must not set the rules for a check.
    """
    roots = {root for model in models if not is_remote(model) for root in _model_roots(model)}
    directories = [*upward(os.path.realpath(start or os.getcwd()))]
    root = next((number for number, directory in enumerate(directories) if _is_repository(directory)), None)
    directories = directories if root is None else directories[: root + 1]
    skipped = []
    for number, directory in enumerate(directories):
        for name in (OWN, SHARED):
            path = os.path.join(directory, name)
            if not os.path.lexists(path):
                continue
            from_model = _is_model(directory, loose=True) or any(map(_is_model, directories[number + 1 :]))
            if from_model or not roots.isdisjoint(upward(directory)):
                if name == OWN or _read_or_none(path) is not None:
                    skipped.append(path)
                continue
            settings = _read_settings(path) if root is not None or number == 0 else None
            if settings is not None:
                return replace(settings, ignored_files=tuple(skipped))
    return Settings(ignored_files=tuple(skipped))


def _is_repository(directory: str) -> bool:
    """Return whether a directory holds `.git`, and only its owner or group could have put it there."""
    return os.path.lexists(os.path.join(directory, ".git")) and not os.stat(directory).st_mode & stat.S_IWOTH


def _model_roots(model: str) -> Iterator[str]:
    """Yield the directory of a model, and each directory above it that the model is a part of."""
    path = os.path.realpath(model)
    mistyped = not os.path.lexists(path) and not glob.has_magic(path)  # no model is there, nor below it
    directory = path if os.path.isdir(path) or mistyped else os.path.dirname(path)
    yield directory
    for above in upward(os.path.dirname(directory)):
        if not _PARTS.fullmatch(os.path.basename(directory)) and not _is_model(above):
            return
        yield above
        directory = above


def _is_model(directory: str, *, loose: bool = False) -> bool:
    """Return whether a directory holds a model's documents and, unless ``loose``, its weights."""
    try:
        names = os.listdir(directory)
    except OSError:
        return True  # nothing says that it is not one
    documents, weights = not _MODEL_FILES.isdisjoint(names), any(map(is_weight, names))
    return (documents or weights) if loose else (documents and weights)


def _read_or_none(path: str) -> Settings | None:
    """Return the settings of a file that is passed over. Its mistakes do not matter."""
    try:
        return _read_settings(path)
    except SettingsError:
        return Settings(path)


def load_settings(path: str) -> Settings:
    """Return the settings in the file at ``path``. Raises `SettingsError`."""
    settings = _read_settings(path)
    if settings is None:
        raise SettingsError(f"{shown(path)} has no [tool.tieconv]", "add the section, or give another file")
    return settings


def _read_settings(path: str) -> Settings | None:
    return parse_settings(read_text(path, _SETTINGS_LIMIT), path)


def load_baseline(path: str) -> Baseline:
    """Return the baseline in the file at ``path``. Raises `SettingsError`."""
    return parse_baseline(read_text(path, MAX_SIZE), path)


def make_policy(
    settings: Settings,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: str | None = None,
    depth: str | None = None,
    consumers: str | None = None,
    baseline: str | None = None,
    without_baseline: bool = False,
    searched: Iterable[str] = (),
) -> Policy:
    """Return the policy. An option overrides its setting, but ``ignore`` adds to the ignored rules.

    ``without_baseline`` skips the baseline that the settings give. Every model of the ``searched`` directories is
    checked.
    """
    chosen = selectors(select, "--select") or settings.select or (ALL,)
    ignored = (*settings.ignore, *selectors(ignore, "--ignore"))
    path = baseline
    if path is None and settings.baseline and not without_baseline:
        path = os.path.relpath(os.path.join(settings.folder, settings.baseline))
    return Policy(
        selection=Selection(chosen, ignored),
        settings=settings,
        fail_on=Level(fail_on) if fail_on else settings.fail_on or DEFAULT_LEVEL,
        depth=Depth(depth) if depth else settings.depth or Depth.CANDIDATES,
        consumers=consumers or settings.consumers,
        baseline=load_baseline(path) if path else None,
        searched=tuple(map(os.path.realpath, searched)),
    )
