"""What the gate says of every case, as data: ``python -m tests.checks.branches.record`` writes `RECORD` anew."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import tieconv as api
from tests.checks import test_levels
from tests.checks.branches import ties
from tests.checks.fixtures import asked, builder
from tests.checks.fixtures.model import matrix, save, weights
from tieconv.checks import RULES

RECORD = Path(__file__).with_name("expected.json")
Build = Callable[[Path], Path]


def _saved(case: ties.Case) -> Build:
    return lambda folder: save(folder, *case)


def cases() -> dict[str, tuple[Build, str | None]]:
    """Each case's builder, and the loader that it is inspected for."""
    by_name: dict[str, tuple[Build, str | None]] = {}
    for rule in RULES:
        build = builder(rule.code, "bad")
        assert build is not None
        by_name[f"{rule.code} bad fixture"] = (build, asked(rule.code))
    for name, (config, tensors, _) in test_levels.CASES.items():
        by_name[f"level: {name}"] = (_saved((config, tensors)), None)
    by_name["TIE012 Mistral's own format"] = (_mistral, None)
    return by_name | {name: (_saved(case), None) for name, case in ties.CASES.items()}


def _mistral(folder: Path) -> Path:
    (folder / "params.json").parent.mkdir(parents=True)
    (folder / "params.json").write_text("{}")
    tensors = {"tok_embeddings.weight": matrix(), "output.weight": matrix(seed=1)}
    (folder / "consolidated.safetensors").write_bytes(weights(tensors))
    return folder


def messages(build: Build, loader: str | None, folder: Path) -> list[dict[str, object]]:
    """Every finding with its level, message, tensors and remedy; the model's path is MODEL."""
    findings = api.inspect(build(folder / "model"), consumers=loader).findings
    return [
        {
            "rule": finding.rule,
            "level": str(finding.level),
            "message": finding.message.replace(str(folder), "FOLDER"),
            "tensors": list(finding.tensors),
            "command": finding.remedy and finding.remedy.command.replace(str(folder), "FOLDER"),
            "safe": finding.remedy and finding.remedy.safe,
        }
        for finding in findings
    ]


def main() -> None:
    """Write what every case gives now; read the difference before it is committed."""
    every = {}
    for name, (build, loader) in cases().items():
        with tempfile.TemporaryDirectory() as folder:
            every[name] = messages(build, loader, Path(folder))
    RECORD.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
