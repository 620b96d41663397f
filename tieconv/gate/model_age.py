"""Tell when a model was changed, for models in directories, on the Hub and in object stores."""

from __future__ import annotations

import math
import os
import re
import time
from datetime import datetime

from tieconv.errors import SettingsError, UnreadableError
from tieconv.sources import is_hub, is_object
from tieconv.text import shown

_AGE = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_age(text: str) -> float:
    """Return the time of an age (``12h``, ``7d``, ``2w``) before now or of a date, in seconds since 1970.

    A date without a zone is local. Raises `SettingsError` for other text.
    """
    if match := _AGE.fullmatch(text):
        return time.time() - int(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise SettingsError(
            f"--newer-than: {shown(text)} is not an age or a date", "write 12h, 7d, 2w or 2026-11-01", "check.age"
        ) from None


def modified(source: str) -> float:
    """Return when the newest file of a model was written, in seconds since 1970. Makes a request for a remote model.

    Returns infinity for a model that cannot be read, so that the check of the model reports why.
    """
    try:
        if is_object(source):
            return _modified_object(source)
        if is_hub(source):
            from tieconv.sources.hub.owner_models import modified_on_hub

            return modified_on_hub(source)
    except UnreadableError:
        return math.inf
    return _modified_locally(source)


def _modified_object(source: str) -> float:
    from tieconv.sources.objects.object_source import open_model

    with open_model(source) as (_, files, _):
        return max(stored.modified for stored in files.listed.stored.values())


def _modified_locally(source: str) -> float:
    try:
        if not os.path.isdir(source):
            return os.stat(source).st_mtime
        with os.scandir(source) as entries:
            return max((entry.stat().st_mtime for entry in entries if entry.is_file()), default=0.0)
    except OSError:
        return math.inf
