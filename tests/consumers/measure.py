"""Measure the predictions on the whole grid and write docs/measured/consumers.json.

    python -m tests.consumers.measure v448/bin/python v4/bin/python

The interpreters hold transformers 4.48.3 and 4.57.6; transformers 5 and safetensors are those installed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.consumers import grid
from tests.consumers.compare import Match, match

OUT = Path(__file__).parents[2] / "docs" / "measured" / "consumers.json"
_VERSIONS = (
    "import json,torch,transformers,safetensors as s;"
    "print(json.dumps([transformers.__version__,s.__version__,torch.__version__]))"
)


def measure(spec: str, python: str | None) -> dict[str, Any]:
    """One loader over the whole grid."""
    with tempfile.TemporaryDirectory() as folder:
        found = match(grid.cells(), spec, Path(folder), python)
    wrong = [one for one in found if one.claims and not one.agrees]
    silent = [one for one in found if not one.claims]
    return {
        "consumer": f"{found[0].predicted.name} {found[0].predicted.version}",
        **_versions(python or sys.executable),
        "checkpoints": len(found),
        "agree": sum(one.claims and one.agrees for one in found),
        "no_claim": len(silent),
        "reasons": sorted({one.predicted.detail for one in silent}),
        "wrong": [str(one) for one in wrong],
        "outcomes": _counts(found),
    }


def _counts(found: list[Match]) -> dict[str, int]:
    outcomes = [one.observed["outcome"] for one in found]
    return {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}


def _versions(python: str) -> dict[str, str]:
    result = subprocess.run([python, "-c", _VERSIONS], stdout=subprocess.PIPE, text=True, check=True)
    transformers, safetensors, torch = json.loads(result.stdout)
    return {"transformers": transformers, "safetensors": safetensors, "torch": torch}


def main() -> None:
    """Measure and write; print a line a loader."""
    oldest, older = sys.argv[1:3]
    plan = {"transformers==4.48": oldest, "transformers==4.57": older, "transformers>=5.4": None, "safetensors": None}
    results = [measure(spec, python) for spec, python in plan.items()]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for entry in results:
        print(entry["consumer"], entry["agree"], "agree,", entry["no_claim"], "no claim,", len(entry["wrong"]), "wrong")


if __name__ == "__main__":
    main()
