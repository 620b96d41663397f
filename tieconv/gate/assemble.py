"""A policy from what the user asked for, the settings file and the baseline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.errors import SettingsError
from tieconv.gate.baseline import MAX_SIZE, Baseline, parse
from tieconv.gate.policy import Policy
from tieconv.gate.rule_selection import ALL, Selection, selectors
from tieconv.gate.settings import OWN, SHARED, Settings, parse_settings
from tieconv.sources.texts import read_text, upward
from tieconv.text import shown

_SETTINGS_LIMIT = 1 << 20
DEFAULT_LEVEL = Level.WARNING


def find_settings(models: Iterable[str], start: str | None = None) -> tuple[Settings, tuple[str, ...]]:
    """The nearest settings at or above ``start`` (the working directory), and those passed over.

    A file that lies in a model that is checked is passed over: what is judged does not set the terms.
    """
    inside = {os.path.realpath(model) for model in models}
    skipped = []
    for directory in upward(start or os.getcwd()):
        for name in (OWN, SHARED):
            path = os.path.join(directory, name)
            if not os.path.lexists(path):
                continue
            if any(above in inside for above in upward(directory)):
                skipped.append(path)
                continue
            settings = _read(path)
            if settings is not None:
                return settings, tuple(skipped)
    return Settings(), tuple(skipped)


def load_settings(path: str) -> Settings:
    """The settings of a file that the user names. Raises `SettingsError`."""
    settings = _read(path)
    if settings is None:
        raise SettingsError(f"{shown(path)} has no [tool.tieconv]", "add the section, or name another file")
    return settings


def _read(path: str) -> Settings | None:
    return parse_settings(read_text(path, _SETTINGS_LIMIT), path)


def load_baseline(path: str) -> Baseline:
    """The baseline in the file at ``path``. Raises `SettingsError`."""
    return parse(read_text(path, MAX_SIZE), path)


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
) -> Policy:
    """What the user asked for goes before the settings; what is ignored there stays ignored.

    ``without_baseline`` passes over the baseline that the settings name.
    """
    chosen = selectors(select, "--select") or settings.select or (ALL,)
    ignored = (*settings.ignore, *selectors(ignore, "--ignore"))
    path = baseline
    if path is None and settings.baseline and not without_baseline:
        path = os.path.join(settings.folder, settings.baseline)
    return Policy(
        selection=Selection(chosen, ignored),
        settings=settings,
        fail_on=Level(fail_on) if fail_on else settings.fail_on or DEFAULT_LEVEL,
        depth=Depth(depth) if depth else settings.depth or Depth.CANDIDATES,
        consumers=consumers or settings.consumers,
        baseline=load_baseline(path) if path else None,
    )
