"""What an inspection says, as far as it does not depend on where the model is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tieconv import inspect


def inspected(result: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def local(path: Path, **options: object) -> dict[str, object]:
    """What `inspect --json` says of a directory."""
    return dict(json.loads(str(inspect(path, **options))))  # type: ignore[arg-type]


def states(document: dict[str, object]) -> dict[str, tuple[str, dict[str, object]]]:
    ties = document["ties"]
    assert isinstance(ties, list)
    return {member["name"]: (member["state"], member["detail"]) for tie in ties for member in tie["members"]}


def verdict(document: dict[str, object]) -> dict[str, object]:
    """What does not depend on where the model is."""
    model = dict(document["model"])  # type: ignore[call-overload]
    for key in ("source", "revision", "fetched"):
        model.pop(key, None)
    told = json.loads(json.dumps({**document, "model": model}))
    for finding in told["findings"]:
        finding["remedy"] = finding["remedy"] and finding["remedy"]["safe"]
    return dict(told)
