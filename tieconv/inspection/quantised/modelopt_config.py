"""Read which modules a config of ModelOpt leaves out: `ignore` in config.json, `exclude_modules` in its own file."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.quantised_matrix import EMBEDDING, ConfigChoice, Verdict
from tieconv.inspection.quantised.module_patterns import matches_pattern

_LISTS = ("ignore", "exclude_modules")
_MOST_ENTRIES = 4096
_BITS = {"NVFP4": (4, 16), "FP8": (8, None)}


def modelopt_choice(values: Mapping[str, object], module: str, role: str) -> ConfigChoice:
    """Return what the config says about a module. A `*` in an entry matches any text."""
    layout = text_of(values.get("quant_algo"))
    bits, group = _BITS.get(layout, (None, None))
    for key in _LISTS:
        entries = values.get(key)
        for entry in entries[:_MOST_ENTRIES] if isinstance(entries, list) else ():
            match = _matches(entry, module) if isinstance(entry, str) else False
            if match is not False:
                verdict = Verdict.LEFT_OUT if match else Verdict.UNDECIDED
                return ConfigChoice(verdict, f"{key}: {entry}", bits, group, True, layout)
    verdict = Verdict.UNDECIDED if role == EMBEDDING or not layout else Verdict.QUANTISED
    return ConfigChoice(verdict, f"quant_algo: {layout}" if layout else "", bits, group, True, layout)


def text_of(value: object) -> str:
    """Return a string of a config; empty for any other value."""
    return value if isinstance(value, str) else ""


def _matches(entry: str, module: str) -> bool | None:
    escaped = entry.replace(".", "\\.").replace("*", ".*")
    return matches_pattern(f"{escaped}$", module)
