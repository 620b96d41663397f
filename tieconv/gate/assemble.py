"""Make a policy from the command's options, the settings file and the baseline."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.errors import SettingsError
from tieconv.gate.baseline import MAX_SIZE, Baseline, parse
from tieconv.gate.discover import is_weight
from tieconv.gate.policy import Policy
from tieconv.gate.rule_selection import ALL, Selection, selectors
from tieconv.gate.settings import OWN, SHARED, Settings, parse_settings
from tieconv.sources import is_remote
from tieconv.sources.user_files import read_text, upward
from tieconv.text import shown

_SETTINGS_LIMIT = 1 << 20
DEFAULT_LEVEL = Level.WARNING


_MODEL_FILES = frozenset(
    (
        "config.json",
        "adapter_config.json",
        "generation_config.json",
        "model_index.json",
        "modules.json",
        "params.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "trainer_state.json",
    )
)
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
            settings = _read(path) if root is not None or number == 0 else None
            if settings is not None:
                return replace(settings, ignored_files=tuple(skipped))
    return Settings(ignored_files=tuple(skipped))


def _is_repository(directory: str) -> bool:
    """Return whether a directory holds `.git`, and only its owner or group could have put it there."""
    return os.path.lexists(os.path.join(directory, ".git")) and not os.stat(directory).st_mode & stat.S_IWOTH


def _model_roots(model: str) -> Iterator[str]:
    """Yield the directory of a model, and each directory above it that the model is a part of."""
    path = os.path.realpath(model)
    directory = path if os.path.isdir(path) else os.path.dirname(path)
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
        return _read(path)
    except SettingsError:
        return Settings(path)


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
