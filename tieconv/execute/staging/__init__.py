"""The staging directory beside OUT: made afresh, owned by one live process, removed after a killed one."""

from __future__ import annotations

from tieconv.execute.staging.staging_directory import Staging, resumable, sweep

__all__ = ["Staging", "resumable", "sweep"]
