"""The command lines that are recorded; MODEL and OTHER stand for the model and its neighbour."""

from __future__ import annotations

MODEL, OTHER = "MODEL", "OTHER"

READING = (
    "inspect MODEL --consumers --json",
    "inspect MODEL --depth full --json",
    "check MODEL --no-config --json",
    "check MODEL --no-config --json --for all",
    "diff MODEL OTHER --json",
)
"""Commands without a plan, for every model."""

TEXT = ("inspect MODEL --consumers", "check MODEL --no-config", "check MODEL --no-config --fix", "diff MODEL OTHER")
"""What people read, and the plans of `check --fix`, which have no JSON."""

_PLANS = (
    "retie MODEL",
    "retie MODEL --from embed --force",
    "retie MODEL --from head --force",
    "retie MODEL --from mean --force",
    "retie MODEL --from embed --max-kl 0.5",
    "retie MODEL --fold-norm",
    "retie MODEL --bias zero",
    "retie MODEL --bias strip",
    "untie MODEL",
    "untie MODEL --keep-flag",
    "untie MODEL --bias zero",
    "untie MODEL --bias strip",
    "dedup MODEL",
    "dedup MODEL --drop-other-formats",
    "bias zero MODEL",
    "bias strip MODEL",
    "bias unify MODEL",
    "bias resize MODEL",
    "set-tie true MODEL",
    "set-tie false MODEL",
    "set-tie auto MODEL",
    "set-tie true MODEL --force",
    "set-tie false MODEL --force",
    "convert MODEL --to safetensors",
    "convert MODEL --to torch",
    "convert MODEL --to safetensors --max-shard-size 20KB",
    "reindex MODEL",
    "reindex MODEL --prune",
    "reindex MODEL --add-format",
    "reindex MODEL --strip-prefix",
    "resize MODEL --to rows",
    "resize MODEL --to config",
    "resize MODEL --to 256",
    "resize MODEL --to 256 --fill mean",
)
PLANS = tuple(f"{line} --dry-run --json" for line in _PLANS)
"""The plan of every writing verb."""

ANALYSIS = ("analyze MODEL --json",)
"""Slower: only for models of which there are few."""


def commands(group: str) -> tuple[str, ...]:
    """Return the command lines for the models of a group."""
    if group == "classes":  # several hundred models: names, groups, loaders and rules, and the plans of both ways
        return (*READING, *(line for line in PLANS if line.split()[:2] in (["retie", MODEL], ["untie", MODEL])))
    many = group in ("grid", "layouts")
    return (*READING, *PLANS) if many else (*READING, *TEXT, *PLANS, *ANALYSIS)
