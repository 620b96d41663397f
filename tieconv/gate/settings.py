"""Parse the settings of the gate: `tieconv.toml`, or `[tool.tieconv]` of a `pyproject.toml`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError
from tieconv.formats.strict_json import parse_toml
from tieconv.gate.rule_selection import ALL, close, selectors
from tieconv.text import shown

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
        problem = f"{shown(path)} is not valid TOML: {shown(error)}"
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
        consumers=table.text("for"),
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
