"""Count what the gate says of every class as `save_pretrained` writes it: the false positives.

    python -m tests.checks.measure [--write]

`--write` keeps the result in docs/measured/silence.json, which docs/check.md quotes.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "measured" / "silence.json"
TIES = {"default": None, "tied": True, "untied": False}


def measure(ties: dict[str, bool | None]) -> dict[str, object]:
    """Findings by level and rule, and each error or warning in words, over all classes that build."""
    import transformers

    from fixtures import zoo

    names = sorted(set(zoo.classes()) - set(zoo.UNBUILDABLE))
    return {
        "transformers": transformers.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "classes": len(names),
        "runs": {title: _run(names, tie) for title, tie in ties.items()},
    }


def _run(names: list[str], tie: bool | None) -> dict[str, object]:
    import tieconv
    from fixtures import zoo

    checked, refused, counts, loud = 0, [], Counter[str](), {}
    for name in names:
        with _folder() as folder:
            try:
                zoo.build(name, tie=tie).save_pretrained(folder)
            except Exception as error:
                if tie and "tie_word_embeddings" in str(error):  # the class refuses to be tied
                    refused.append(name)
                    continue
                raise
            (model,) = tieconv.check(folder, fail_on="note").models
        checked += 1
        assert model.failure is None, (name, model.failure)
        counts.update(f"{entry.finding.level} {entry.finding.rule}" for entry in model.findings)
        messages = [entry.finding.message for entry in model.findings if entry.finding.level != "note"]
        if messages:
            loud[name] = messages
    return {"checked": checked, "refused": refused, "findings": dict(sorted(counts.items())), "loud": loud}


class _folder:
    """A directory that is gone afterwards: hundreds of models would fill the disk."""

    def __enter__(self) -> Path:
        self.path = Path(tempfile.mkdtemp())
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def lines(measured: dict[str, dict[str, dict[str, object]]]) -> Iterator[str]:
    """The result as a table."""
    for title, run in measured["runs"].items():
        levels = Counter[str]()
        for key, number in run["findings"].items():  # type: ignore[attr-defined]
            levels[key.split()[0]] += number
        counts = ", ".join(f"{levels[level]} {level}s" for level in ("error", "warning", "note"))
        yield f"{title:8} {run['checked']} models: {counts}"


if __name__ == "__main__":
    result = measure(TIES)
    print("\n".join(lines(result)))  # type: ignore[arg-type]
    if "--write" in sys.argv:
        RECORD.write_text(json.dumps(result, indent=1) + "\n")
