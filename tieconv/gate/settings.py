"""Read the settings of the gate: which rules run, and for which models they do not count."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING, Any

from tieconv.architectures.stored_names import LEFT
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.value_type import record, strings
from tieconv.errors import SettingsError
from tieconv.formats.strict_json import parse_toml
from tieconv.install import documentation
from tieconv.package_data import data_text
from tieconv.text import close, shown

if TYPE_CHECKING:
    from tieconv.checks.evidence import Rule


# Select rules by codes and prefixes. The longest selector that matches a rule decides.


ALL = "ALL"


@record
class Selection:
    """Selectors: a rule's code (`TIE001`), a prefix (`TIE`, `TIE00`), or `ALL`.

    A rule that no ``select`` covers does not run. The longest selector that covers a rule decides. If two have the same
    length, ``ignore`` decides.
    """

    select: tuple[str, ...] = (ALL,)
    ignore: tuple[str, ...] = ()

    def runs(self, code: str) -> bool:
        """Return whether findings of the rule appear in the report."""
        return longest(self.select, code) is not None

    def ignored_by(self, code: str) -> str | None:
        """Return the selector that ignores the rule, or ``None`` if the rule counts."""
        ignoring, selecting = longest(self.ignore, code), longest(self.select, code)
        if ignoring is None or selecting is None or _weight(ignoring) < _weight(selecting):
            return None
        return ignoring

    def codes(self) -> tuple[str, ...]:
        """Return the rules that run; empty if all run."""
        if ALL in self.select:
            return ()
        return tuple(rule.code for rule in rules() if self.runs(rule.code))


def longest(selectors: Iterable[str], code: str) -> str | None:
    """Return the most specific of the selectors that cover ``code``."""
    covering = [selector for selector in selectors if selector == ALL or code.startswith(selector)]
    return max(covering, key=_weight, default=None)


def selectors(words: str | Iterable[str], where: str) -> tuple[str, ...]:
    """Return the selectors in ``words``, a code for a name. Commas separate several. Raises `SettingsError`."""
    named = tuple(part.strip().upper() for word in strings(where, words) for part in word.split(","))
    codes = {rule.name.upper(): rule.code for rule in rules()} if named else {}
    named = tuple(codes.get(selector, selector) for selector in named)
    for selector in named:
        if selector != ALL and not (selector and any(code.startswith(selector) for code in codes.values())):
            raise unknown(selector, where)
    return named


def _weight(selector: str) -> int:
    return 0 if selector == ALL else len(selector)


def rules() -> tuple[Rule, ...]:
    """Return every rule, in the order of the documentation."""
    from tieconv.checks.registry import RULES  # forty modules that a run without rules need not import

    return RULES


def find_rule(word: str) -> Rule:
    """Return the rule with this code or name. Raises `SettingsError` with similar rules."""
    for rule in rules():
        if word.upper() == rule.code or word.lower() == rule.name:
            return rule
    raise unknown(word)


def find_cases(message: str, *, parts: bool = True) -> dict[str, Mapping[str, Any]]:
    """Return the cases of docs/cases.md whose message is in ``message``; or the case of this name.

    With ``parts``, a part of a message is enough. If ``message`` is cut off, each message that may continue it counts.
    Of a tensor's name, a wrapper's prefix and the last two parts count: models put different ones before them. If no
    message is alike, any number counts, and any tensor of the same kind (of a layer, a table).
    """
    message = re.sub(r"\x1b\[[\d;]*m", "", message).translate(_STRAIGHT)
    rows = _NOTE.sub("", message)  # the rows of a load report say more than the notes below them
    if rows != message and (known := find_cases(rows, parts=parts)):
        return known
    message = re.sub(_BULLET, "", message)
    begun = without_ellipsis(message)
    message = begun or message
    # The first layer and tensors outside the layers are never surplus, so the messages of that case have another.
    layer = "layers." if re.search(r"\b(layers\.|\w+\.(?=\d+\.))[1-9]", message) else "layers.0"
    layer = "blk." if re.search(r"\bblk\.\d", message) else layer
    about_table = ""
    if not _WRAPPED.search(message) and (table := re.search(rf"{_RUN}(?:[\w.]+\.)?{_TABLE}", message)):
        about_table = re.escape(table[1])
    matching: set[str] = set()
    for simpler, about in (_comparable, ""), (_any_tensor, about_table or re.escape(layer)):
        asked = simpler(message)
        matching = {
            name
            for name, text, alike in _messages(simpler)
            if (alike in asked or (parts and len(asked) >= _PART and asked in alike)) and re.search(about, text)
        }
        if asked.upper() in _catalogue():
            matching = {asked.upper()}
        if matching or (_OTHER_HEAD.search(message) and "size mismatch" not in message):
            break
    if begun:
        matching |= _continuing(begun)
    return {name: case for name, case in _catalogue().items() if name in matching}


_STRAIGHT = str.maketrans("‘’“”", "''\"\"")
_NOTE = re.compile(r"^\s*-\s+(?:MISSING|UNEXPECTED|MISMATCH):.*$", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*(?:[-*•>|][ \t]|\.\.\.|…)[ \t]*", re.MULTILINE)
_RUN = r"(?<![\w.])"  # where a name begins: a search from each of its letters would take minutes for a long one
_TABLE = r"((?:lm_head|embed_tokens)\.(?:weight|bias))"
_WRAPPED = re.compile(rf"{_RUN}(?:_orig_mod|base_model|module)\.")
_OTHER_HEAD = re.compile(r"\b(score|classifier|qa_outputs|predictions)\.")  # the head of a task, and not a layer
_PART = 12  # characters of a part of a message that show which one it is


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, Mapping[str, Any]]:
    every: dict[str, Mapping[str, Any]] = json.loads(data_text(__name__, "cases.json"))
    return every


@lru_cache(maxsize=8)
def _messages(simpler: Callable[[str], str]) -> tuple[tuple[str, str, str], ...]:
    """Return each message with its case, as it is and simplified."""
    return tuple((name, text, simpler(text)) for name, case in _catalogue().items() for text in case["messages"])


def cases_by_words(text: str) -> dict[str, Mapping[str, Any]]:
    """Return the cases with most words of ``text`` in the symptom, or with a message that is much like it.

    A rare word counts more than a frequent one, and a word that no case has counts most. The most alike come first.
    """
    asked = _words(text[:_LONGEST])
    symptoms = {
        name: _words(f"{case['symptom']} {case['signs']} {' '.join(case['rules'])}")
        for name, case in _catalogue().items()
    }
    frequency = Counter(word for words in symptoms.values() for word in words)
    weights = {word: log((1 + len(symptoms)) / (1 + frequency[word])) for word in asked}
    whole = sum(weights.values()) or 1.0
    shares = {name: sum(weights[word] for word in asked & words) / whole for name, words in symptoms.items()}
    everything = set(re.findall(_WORD, text[:_LONGEST].lower()))
    for name, _, message in _messages(_plain):
        words = set(re.findall(_WORD, message))
        if len(both := everything & words) >= _ALIKE:
            shares[name] = max(shares[name], len(both) / len(words))
    least = max(_MOST, _NEARLY * max(shares.values()))
    likely = sorted((name for name in shares if shares[name] >= least), key=lambda name: -shares[name])
    return {name: _catalogue()[name] for name in likely[:_LISTED]}


def _words(text: str) -> set[str]:
    """Return the beginnings of the words of ``text`` that tell what happens: no name, number or word of every text."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|\S*[\d.]\w\S*|\b[A-Z]\w*Error\b", " ", text)
    words = (word for word in re.findall(r"[a-z]{3,}", plain.lower()) if not _FILLERS.fullmatch(word))
    return {re.sub(r"(?:ed|ing|e|s|es)\Z", "", word)[:6] for word in words}


_FILLERS = re.compile(
    r"the|and|for|that|this|with|from|into|are|was|were|has|have|had|not|but|its|my|when|after|before|then|than|models?|"
    r"outputs?|gives?|writes?|generates?|produces?|says?|speaks?|errors?"
)
_MOST, _NEARLY, _LISTED = 0.5, 0.8, 8
"""The least share of the words, which part of the best share counts too, and how many cases are listed."""
_WORD, _ALIKE = r"[a-z_]{4,}", 4
"""A word of a message, and how many of them must be the same."""


def without_ellipsis(message: str) -> str:
    """Return the message without the ellipsis that cuts it off; empty if it is whole."""
    cut = re.search(r"(?:…|\.\.\.)['\"\s]*\Z", message)
    return message[: cut.start()] if cut else ""


def _continuing(begun: str) -> set[str]:
    """Return the cases with a message of which ``begun`` ends with the start, of a cut name with any name."""
    text = _plain(begun)
    if "were not initialized from the model checkpoint" in text and "newly initialized:" not in text:
        text = "newly initialized:"  # transformers 4 says next which weights these are
    nameless = re.sub(rf"{_RUN}\w+[._][\w.]*\Z", "", text)
    layer = "layers." if re.search(r"\b(?:layers|blk|h)\.[\w.]*\Z", text) else ""
    for start, about in (text, ""), (nameless, layer):
        ends = [start[-length:] for length in range(_PART, min(len(start), _LONGEST) + 1)]
        cases = {
            name
            for name, _, alike in _messages(_plain)
            if about in alike and any(alike.startswith(end) for end in ends)
        }
        if cases:
            return cases
    return set()


_LONGEST = 200  # characters of a message that are compared, if it is cut or not known


def _plain(message: str) -> str:
    return " ".join(re.sub("[`'\"]", "", message.lower()).split()).rstrip(" |")


def _comparable(message: str) -> str:
    names = rf"{_RUN}[\w.]+\.(\w+\.(?:weight|bias))\b"
    last_two = re.sub(names, lambda name: name[1] + "<wrapped>" * bool(_WRAPPED.match(name[0])), message.lower())
    file = r"(?<!\S)\S{0,999}/(?=model)|(?<!\d)\d{5}(?=-of-\d)|(?<=-of-)\d{5}"  # a folder and the numbers of a shard
    return _plain(re.sub(file, "", last_two))


def _any_tensor(message: str) -> str:
    text = _plain(message)
    text = re.sub(rf"{_RUN}[\w.]*(?:{LEFT.pattern})[\w.]*|\b(?:_orig_mod|base_model|module)\.[\w.]+", "<wrapped>", text)
    text = re.sub(rf"{_RUN}[\w.]*\blayers\.[\w.…]+|{_RUN}[\w.]+\.(?:weight|bias)\b", "<tensor>", text)
    return re.sub(r"\d+", "#", re.sub(r"<tensor>(?:, <tensor>)+", "<tensor>", text))


def unknown(word: str, where: str = "") -> SettingsError:
    """Return the error for a word that is neither a rule's code nor its name."""
    prefix = f"{where}: " if where else ""
    if " " in word.strip() and not where:
        hint = f"look at the files: tieconv inspect MODEL; all cases are in {documentation('cases.md')}"
        if re.search(r"\bLOAD REPORT\b", word):
            hint = "give a row of this load report, such as: tieconv explain 'lm_head.weight | MISSING |'"
        named = {rule.name: f"did you mean {rule.code} ({rule.name})? " for rule in rules()}
        similar = next((named[name] for name in close("-".join(word.lower().split()), named)), "")
        return SettingsError("No known case matches this message", similar + hint, "case.unknown")
    return SettingsError(f"{prefix}{shown(word, 60) or 'an empty word'} is not a rule", _meant(word), "rule.unknown")


def _meant(word: str) -> str:
    named = {rule.name: rule for rule in rules()}
    coded = {rule.code: rule for rule in rules()}
    likely = [coded[code] for code in (*_spelled(word.upper(), coded), *close(word.upper(), coded))]
    likely += [named[name] for name in close(word.lower(), named)]
    likely += [rule for name, rule in named.items() if len(word) > 2 and word.lower() in name]
    if not likely:
        return "list all rules with: tieconv rules"
    unique = dict.fromkeys(f"{rule.code} ({rule.name})" for rule in likely)
    return f"did you mean {' or '.join(list(unique)[:3])}? List all rules with: tieconv rules"


def _spelled(word: str, codes: Iterable[str]) -> list[str]:
    """Return the codes with the letters and the number of ``word``, then those that start like it."""
    letters, number = word.rstrip("0123456789"), word[len(word.rstrip("0123456789")) :]
    same = [code for code in codes if number and code == f"{letters}{int(number[:9]):03d}"]
    return same + [code for code in codes if word and code.startswith(word) and code not in same]


# Parse the settings of the gate: `tieconv.toml`, or `[tool.tieconv]` of a `pyproject.toml`.


OWN, SHARED = "tieconv.toml", "pyproject.toml"
SECTION = ("tool", "tieconv")


@record
class ModelIgnore:
    """Rules that do not count for the models that match the pattern ``model``, with the ``reason``."""

    model: str
    ignore: tuple[str, ...]
    reason: str


@record
class Settings:
    """The values of a settings file; ``None`` for a setting that is absent. ``path`` is empty without a file.

    ``ignored_files`` are nearer settings files that may have come with a model.
    """

    path: str = ""
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    fail_on: Level | None = None
    consumers: str | None = None
    depth: Depth | None = None
    baseline: str | None = None
    per_model: tuple[ModelIgnore, ...] = ()
    ignored_files: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The directory that paths and patterns in the file are relative to."""
        return os.path.dirname(self.path)


def parse_settings(text: str, path: str) -> Settings | None:
    """Return the settings in the TOML ``text`` of the file at ``path``.

    Returns ``None`` for a `pyproject.toml` without the section. Raises `SettingsError` with the key and the file for
    anything that is not understood.
    """
    own = os.path.basename(path) != SHARED
    if not own and SECTION[-1] not in text:
        return None  # most files have no section: do not import a parser
    try:
        document = parse_toml(text)
    except ValueError as error:
        why = "it holds an integer of thousands of digits" if type(error) is ValueError else shown(error)
        problem = f"{shown(path)} is not valid TOML: {why}"
        raise SettingsError(problem, "correct the line", "settings.toml") from error
    if own:
        return _settings(_Table(path, "", document))
    section: object = document
    for key in SECTION:
        if not isinstance(section, dict) or key not in section:
            return None
        section = section[key]
    if not isinstance(section, dict):
        raise _wrong(path, ".".join(SECTION), "must be a table")
    return _settings(_Table(path, "tool.tieconv.", section))


@record
class _Table:
    """A table of the file at ``path``. ``prefix`` precedes its keys in messages."""

    path: str
    prefix: str
    values: Mapping[str, object]

    def only(self, *known: str) -> None:
        """Raise for a key that is not ``known``."""
        for key in self.values:
            if key not in known:
                suggestions = close(key, known)
                hint = f"did you mean {suggestions[0]}?" if suggestions else f"the settings are {', '.join(known)}"
                if key == "tool":
                    hint = f"in {shown(os.path.basename(self.path))} leave [tool.tieconv] out; pyproject.toml needs it"
                elif isinstance(self.values[key], dict):
                    level = f"belong in [{self.prefix.rstrip('.')}]" if self.prefix else "are top-level"
                    hint = f"write its keys without the table [{self.prefix}{shown(key, 60)}]: settings {level}"
                name = f"{self.prefix}{shown(key, 60)}"
                raise SettingsError(f"{shown(self.path)}: unknown setting {name}", hint, "settings.key")

    def text(self, key: str, *choices: str) -> str | None:
        """Return a string that is not empty, or ``None`` if the key is absent. ``choices`` limit the values."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise self.wrong(key, "must be a string that is not empty and has no null character")
        if choices and value not in choices:
            raise self.wrong(key, f"must be one of {', '.join(choices)}")
        return value

    def loaders(self, key: str) -> str | None:
        """Return loaders as ``--for`` takes them; the file may have them as a list too."""
        listed = self.values.get(key)
        if not isinstance(listed, list):
            return self.text(key)
        if not listed or not all(isinstance(name, str) and name.strip() and "\0" not in name for name in listed):
            raise self.wrong(key, "must be a string or a list of strings, none of them empty or with a null character")
        return ",".join(listed)

    def required(self, key: str, why: str) -> str:
        """Return a string as `text` does. Raise if the key is absent."""
        value = self.text(key)
        if value is None:
            raise self.wrong(key, why)
        return value

    def selectors(self, key: str) -> tuple[str, ...] | None:
        """Return a list of rule codes and prefixes, or ``None`` if the key is absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.wrong(key, 'must be a list of rules, such as ["TIE001", "STO"]')
        return selectors(value, f"{shown(self.path)}: {self.prefix}{key}")

    def tables(self, key: str) -> tuple[_Table, ...]:
        """Return a list of tables; empty if the key is absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.wrong(key, f"must be tables: [[{self.prefix}{key}]]")
        return tuple(_Table(self.path, f"{self.prefix}{key}[{index}].", entry) for index, entry in enumerate(value, 1))

    def wrong(self, key: str, problem: str) -> SettingsError:
        """Return the error for the value of ``key``."""
        return _wrong(self.path, f"{self.prefix}{key}", problem)


def _wrong(path: str, name: str, problem: str) -> SettingsError:
    return SettingsError(f"{shown(path)}: {name} {problem}", "docs/check.md shows every setting", "settings.value")


def _settings(table: _Table) -> Settings:
    table.only("select", "ignore", "fail-on", "for", "depth", "baseline", "per-model")
    fail_on, depth = table.text("fail-on", *Level), table.text("depth", *Depth)
    return Settings(
        path=table.path,
        select=table.selectors("select"),
        ignore=table.selectors("ignore") or (),
        fail_on=Level(fail_on) if fail_on else None,
        consumers=table.loaders("for"),
        depth=Depth(depth) if depth else None,
        baseline=table.text("baseline"),
        per_model=tuple(map(_model_ignore, table.tables("per-model"))),
    )


def _model_ignore(table: _Table) -> ModelIgnore:
    table.only("model", "ignore", "reason")
    ignore = table.selectors("ignore")
    if not ignore:
        raise table.wrong("ignore", f'is missing: the rules, such as ["TIE002"] or ["{ALL}"]')
    return ModelIgnore(
        model=table.required("model", "is missing: the path of a model, or a pattern"),
        ignore=ignore,
        reason=table.required("reason", "is missing: say why these findings do not count"),
    )


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
