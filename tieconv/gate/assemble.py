"""Make a policy from the command's options, the settings file and the baseline."""

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
from tieconv.sources.user_files import read_text, upward
from tieconv.text import shown

_SETTINGS_LIMIT = 1 << 20
DEFAULT_LEVEL = Level.WARNING


def find_settings(models: Iterable[str], start: str | None = None) -> tuple[Settings, tuple[str, ...]]:
    """Return the nearest settings at or above ``start`` (the working directory), and the files it skipped.

    It skips a settings file inside a model that is checked. A model must not set the rules for its own check.
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
    """Return the settings in the file at ``path``. Raises `SettingsError`."""
    settings = _read(path)
    if settings is None:
        raise SettingsError(f"{shown(path)} has no [tool.tieconv]", "add the section, or give another file")
    return settings


def _read(path: str) -> Settings | None:
    return parse_settings(read_text(path, _SETTINGS_LIMIT), path)


def load_baseline(path: str) -> Baseline:
    """Return the baseline in the file at ``path``. Raises `SettingsError`."""
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
    """Return the policy. An option overrides its setting, but ``ignore`` adds to the ignored rules.

    ``without_baseline`` skips the baseline that the settings give.
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
