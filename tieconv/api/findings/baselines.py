"""Write the baseline: known findings that do not count."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tieconv.errors import SettingsError
from tieconv.gate.assemble import load_baseline
from tieconv.sources.user_files import write_text
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.checkpoint.results.checked import CheckedModel, CheckReport
    from tieconv.gate.policy import Policy


def write_baseline(path: str, policy: Policy, report: CheckReport, models: dict[str, CheckedModel]) -> int:
    """Write the gate's findings to the baseline at ``path`` and return the number of its entries.

    Raises `SettingsError` if a model could not be read.
    """
    failed = next((model for model in report.models if model.failure is not None), None)
    if failed is not None and failed.failure is not None:
        raise SettingsError(
            f"{shown(path)} was not written: {failed.failure.message}",
            "a baseline needs every model: leave this model out, or repair it",
            "baseline.unreadable-model",
        )
    old = load_baseline(path) if os.path.lexists(path) and os.path.getsize(path) else None
    write_text(path, policy.debt(models, path, old))
    return len(load_baseline(path).entries)
