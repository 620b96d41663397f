"""Files that people hand in to `check`: settings, baselines and lists of models."""

from __future__ import annotations

import random

from tests.fuzz.case import LINK, PIPE, Case
from tests.fuzz.mutate.edits import NAMES, NUMBERS, edited
from tests.fuzz.mutate.json_tree import Raw, damaged
from tests.fuzz.targets.runs_target import GOOD

COMMANDS = {
    "tieconv.toml": ("check", "model/good", "--config", "model/tieconv.toml"),
    "pyproject.toml": ("check", "model/good", "--config", "model/pyproject.toml"),
    "baseline.json": ("check", "--no-config", "model/good", "--baseline", "model/baseline.json"),
    "list.txt": ("check", "--no-config", "@model/list.txt"),
}
_VALUES = (
    '"full"', '"header"', '["TIE001", "STO"]', '["ALL"]', "true", "0x" + "f" * 5000, "1" * 4301, "1e999", "nan", "[]",
    '"warning"', "1979-05-27T07:32:00Z", "9999-12-31", "[" * 70 + "]" * 70, "{ a = 1 }", "{" + "a." * 200 + "a = 1}",
    '"\\ud800"', '"\\u0000"', '"""\n"""', '[{model = "x", ignore = ["TIE001"], reason = "y"}]', "'x'",
)  # fmt: skip
_KEYS = ("select", "ignore", "fail-on", "for", "depth", "baseline", "per-model", "model", "reason", "a" + ".a" * 200,
         '"a\\nb"', "''", "tool.tieconv.depth")  # fmt: skip
_TABLES = ("", "[[per-model]]", "[per-model]", "[tool.tieconv]", "[[tool.tieconv.per-model]]", "[" + "a." * 99 + "a]")
_PLACES = [name for name in NAMES if not name.startswith(("/", "."))]
"""What a list may name: nothing that holds other models, such as a whole disk."""
_ENTRY = {"model": "good", "rule": "TIE002", "file": "model.safetensors", "tensors": ["lm_head.weight"]}


def _toml(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(1, 6)):
        lines.append(rng.choice(_TABLES) if rng.random() < 0.3 else f"{rng.choice(_KEYS)} = {_value(rng)}")
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return edited(rng, data) if rng.random() < 0.3 else data


def _value(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(_VALUES)
    return str(rng.choice(NUMBERS)) if rng.random() < 0.5 else f'"{rng.choice(NAMES)}"'


def make(rng: random.Random) -> Case:
    """Return a good model and one such file that is damaged."""
    name = rng.choice(tuple(COMMANDS))
    if name.endswith(".toml"):
        data = b"[tool.tieconv]\n" * (name[0] == "p" and rng.random() < 0.8) + _toml(rng)
    elif name == "baseline.json":
        document = {"schema": "tieconv.baseline/1", "depth": "candidates", "entries": [_ENTRY, {**_ENTRY, "file": "x"}]}
        data = damaged(rng, document, (_ENTRY, "full", Raw("1" * 4301)))
    else:
        lines = [rng.choice(("model/good", "# x", "", *_PLACES)) for _ in range(rng.randint(1, 4))]
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
        data = edited(rng, data).replace(b"/\n", b"").lstrip(b"/") if rng.random() < 0.3 else data
    if rng.random() < 0.03:
        data = rng.choice((LINK + b":/dev/zero", LINK + b":none", PIPE + b":", b"", b"\xff\xfea\0"))
    return Case("settings", {**GOOD, name: data}, commands=(COMMANDS[name],))
