"""Carry out a plan: write beside OUT, verify what was written, rename once."""

from __future__ import annotations

from tieconv.execute.carry_out import clear, execute
from tieconv.execute.target import Target, check_far_target, check_target, replaces_directory, stale

__all__ = ["Target", "check_far_target", "check_target", "clear", "execute", "replaces_directory", "stale"]
