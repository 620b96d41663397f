"""RUNS of `tieconv fleet`, `check --resume` and `analyze --resume`: damaged lines and lists, links and pipes."""

from __future__ import annotations

import json
import random

from tests.fuzz.case import LINK, OPEN, PIPE, Case
from tests.fuzz.models import config, safetensors, tensors
from tests.fuzz.mutate.edits import NAMES, NUMBERS
from tests.fuzz.mutate.json_tree import ODD, Raw, damaged
from tieconv.checkpoint.finding import Action, Finding, Level, Remedy
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, Failure
from tieconv.gate.examine import RUN_SCHEMA, entry_of
from tieconv.version import VERSION

GOOD = {"good/model.safetensors": safetensors(tensors()), "good/config.json": config()}
"""The model that the commands read, which is whole."""
COMMANDS = (
    ("fleet", "report", "--no-config", "model/runs"),
    ("fleet", "report", "--no-config", "--json", "model/runs"),
    ("fleet", "report", "--no-config", "model/runs", "--since", "model/earlier"),
    ("fleet", "check", "model/good", "-q", "-o", "model/runs"),
    ("check", "--no-config", "model/good", "--resume", "model/runs/check.jsonl"),
    ("analyze", "model", "--revisions", "good,good2", "--resume", "model/runs/check.jsonl"),
)
_FILES = ("check.jsonl", "check.list", "report.html", "models.parquet", "findings.parquet", "check-1-of-2.list")
_EXTRA: tuple[object, ...] = (
    "model/good", "TIE002", "error", "note", RUN_SCHEMA, VERSION, "candidates", 2**63 - 1, 2**63, 253_402_300_800,
    *(Raw(text) for text in ("NaN", "Infinity", "1e300", "-1e12", "1" * 4301, str(10**400))),
)  # fmt: skip


def _line(rng: random.Random, source: str) -> dict[str, object]:
    action = Action("retie", source, (("bias", "strip"),))
    finding = Finding("TIE002", Level.WARNING, rng.choice(NAMES), (rng.choice(NAMES),), Remedy("x", True, action))
    model = CheckedModel(source, (CheckedFinding(finding, "model.safetensors"),) * rng.randint(0, 2))
    if rng.random() < 0.2:
        model = CheckedModel(source, failure=Failure(rng.choice(NAMES), rng.choice(NAMES)))
    asked = {"tieconv": VERSION, "depth": "candidates", "for": None}
    numbers = {"bytes": rng.choice((1000, *NUMBERS)), "finished": rng.choice((0, 1.7e9, 1e9))}
    return {"schema": RUN_SCHEMA, **entry_of(model, asked, fingerprint=rng.choice(NAMES), **numbers)}


def make(rng: random.Random) -> Case:
    """Return a good model, and a directory of results in which a few things are wrong."""
    sources = ["model/good", rng.choice(NAMES)]
    lines = [_line(rng, rng.choice(sources)) for _ in range(rng.randint(1, 3))]
    texts = [damaged(rng, line, _EXTRA) if rng.random() < 0.6 else json.dumps(line).encode() for line in lines]
    kept = {"check.jsonl": b"\n".join(texts) + rng.choice((b"\n", b"\n", b"", b"\n\n", texts[0][:40]))}
    kept["check.list"] = damaged(rng, sources, _EXTRA) if rng.random() < 0.2 else json.dumps(sources).encode()
    for _ in range(rng.choice((0, 0, 1))):
        plant = rng.choice((LINK + b":../victim", LINK + b":/dev/zero", LINK + b":none", PIPE + b":", OPEN + b":x"))
        kept[rng.choice(_FILES)] = plant
    if rng.random() < 0.05:
        kept[rng.choice(_FILES)] = str(rng.choice(ODD)).encode("utf-8", "replace")
    files = {**GOOD, "victim": b"precious", **{f"runs/{name}": data for name, data in kept.items()}}
    files |= {f"good2/{name[5:]}": data for name, data in GOOD.items()}
    files |= {"earlier/check.list": b'["model/good"]', "earlier/check.jsonl": json.dumps(lines[0]).encode() + b"\n"}
    return Case("runs", files, commands=(rng.choice(COMMANDS),), written=("runs",))
