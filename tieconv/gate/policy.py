"""Decide what counts: apply selection, settings and baseline to the findings of models."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, Waiver
from tieconv.checkpoint.value_type import record
from tieconv.gate import baseline as baselines
from tieconv.gate.baseline import Baseline, Entry
from tieconv.gate.rule_selection import Selection, longest
from tieconv.gate.settings import ModelIgnore, Settings
from tieconv.text import count, shell_word, shown


@record
class Policy:
    """Everything that decides whether a finding counts. Models are identified by absolute path."""

    selection: Selection
    settings: Settings
    fail_on: Level
    depth: Depth
    consumers: str | None = None
    baseline: Baseline | None = None

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
        key = baselines.entry_of(self.baseline.relative(location), entry)
        if not known[key]:
            return None
        known[key] -= 1
        return Waiver("baseline", f"in the baseline {shown(self.baseline.path)}")

    def _about(self, location: str) -> Iterator[tuple[int, ModelIgnore]]:
        for number, ignore in enumerate(self.settings.per_model):
            if matches(ignore.model, location, self.settings.folder):
                yield number, ignore

    def notes(self, models: Mapping[str, CheckedModel]) -> Iterator[str]:
        """Yield notes on settings that are ignored, and on settings and baseline entries that match nothing.

        ``models`` are keyed by location.
        """
        yield from self.settings_notes()
        read = {location: model for location, model in models.items() if model.failure is None}
        if self.depth is not Depth.HEADER:  # without a comparison no finding is known to be fixed
            yield from self._unused(read)
            yield from _uncompared(read)
        fixed = sum(self._fixed(location, model) for location, model in read.items())
        if fixed and self.baseline:
            entries = f"{count(fixed, 'entry')} of".replace("entrys", "entries")
            verb = "is" if fixed == 1 else "are"
            path = shell_word(self.baseline.path)
            yield f"{entries} the baseline {verb} fixed: update the baseline with --write-baseline {path}"

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
        from tieconv.gate.rule_selection import rules

        codes = [rule.code for rule in rules() if longest((selector,), rule.code)]
        return any(self._looked_for(code) for code in codes)

    def _looked_for(self, code: str) -> bool:
        return self.selection.runs(code) and (self.consumers is not None or not code.startswith("CON"))

    def _fixed(self, location: str, model: CheckedModel) -> int:
        if self.baseline is None or not baselines.covers(self.depth, self.baseline.depth):
            return 0
        name = self.baseline.relative(location)
        known = Counter(entry for entry in self.baseline.of(location).elements() if self._looked_for(entry.rule))
        return (known - Counter(baselines.entry_of(name, entry) for entry in model.findings)).total()

    def debt(self, models: Mapping[str, CheckedModel], path: str, old: Baseline | None) -> str:
        """Return the text of a baseline at ``path``: findings that count, or that a baseline waived.

        It keeps entries of ``old``, the file's former content, that this run could not confirm as fixed. These are
        entries of other models, of rules that did not run, and of a deeper inspection.
        """
        names = {location: baselines.relative(location, path) for location in models}
        now = Counter(
            baselines.entry_of(names[location], entry)
            for location, model in models.items()
            for entry in model.findings
            if entry.waiver is None or entry.waiver.by == "baseline"
        )
        kept_entries: Counter[Entry] = Counter()
        depth = self.depth
        if old is not None:
            deeper = not baselines.covers(depth, old.depth)
            depth = old.depth if deeper else depth
            checked = set(names.values())
            kept_entries.update(
                entry
                for entry in old.entries
                if deeper or entry.model not in checked or not self._looked_for(entry.rule)
            )
        return baselines.render(depth, (kept_entries | now).elements())


def _uncompared(read: Mapping[str, CheckedModel]) -> Iterator[str]:
    """Yield a note on tied tensors of which only samples were read, with the option that compares all bytes."""
    unread = [model for model in read.values() if model.unread]
    if unread:
        more = f" and of {count(len(unread) - 1, 'more model')}" if unread[1:] else ""
        names = ", ".join(shown(name) for name in unread[0].unread[:3])
        yield f"{names} of {shown(unread[0].source)}{more}: not compared; compare every byte with --depth full"
    left = [model.not_compared for model in read.values() if model.not_compared]
    if left:
        where = "" if len(read) == 1 else f" of {count(len(left), 'model')}"
        yield f"{count(sum(left), 'tensor')}{where} were not compared with each other: --depth full compares them"


def matches(pattern: str, path: str, base: str) -> bool:
    """Return whether ``pattern`` matches the absolute ``path`` or a directory above it.

    A relative pattern starts at the directory ``base``.
    """
    if "://" not in path:
        if os.path.isabs(pattern):
            pattern = os.path.normpath(pattern)
        else:
            path = os.path.relpath(path, base)
            pattern = os.path.normpath(pattern)
    return _compiled(pattern).match(path) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(f"(?s:{''.join(map(_piece, _TOKENS.findall(pattern)))})(?:/|\\Z)")


_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|[\s\S]")


def _piece(token: str) -> str:
    simple = {"**/": "(?:[^/]*/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in simple:
        return simple[token]
    if len(token) > 1:
        inside = token[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
        return f"(?!/)[{'^' + inside[1:] if inside.startswith('!') else inside.replace('^', chr(92) + '^', 1)}]"
    return re.escape(token)
