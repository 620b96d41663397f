"""Change the tie flag together with the quantisation config, if there is one."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan import DropConfig, OutputText, SetConfig


def flag_document(
    inspection: Inspection, tied: bool
) -> tuple[OutputText | None, tuple[SetConfig | DropConfig, ...]] | None:
    """Return the config with the flag ``tied`` and fitting entries, ``None`` if it describes no quantisation."""
    if inspection.quantisation is None:
        return None
    from tieconv.plans.quantised.quantised_config import config_with_flag  # most models are not quantised

    return config_with_flag(inspection, tied)
