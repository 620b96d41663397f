"""Judge what was written with an older transformers, in an environment of its own.

    python -m venv v4 && v4/bin/pip install torch==2.13.0 transformers==4.57.6
    python -m tests.reload.older v4/bin/python [CLASS ...]

Unties and re-ties tiny models here, in every layout, then lets the other interpreter load each directory and compare
its logits, bit for bit, with those of the model that it came from. Exits 1 where one differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

KNOWN = {
    "LongT5ForConditionalGeneration": "untied, 4.57 lists two shared tables as missing and shares them all the same"
}
"""Classes whose load report differs although their logits do not."""

JUDGE = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch, transformers
transformers.logging.set_verbosity_error()

def load(cls, folder, kwargs):
    torch.manual_seed(0)
    model, info = cls.from_pretrained(folder, output_loading_info=True, torch_dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        logits = model(**kwargs).logits
    return logits, set(info["missing_keys"]), set(info["unexpected_keys"])

for line in sys.stdin:
    job = json.loads(line)
    cls, label = getattr(transformers, job["class"], None), [job["class"], job["layout"]]
    if cls is None:
        print(json.dumps([*label, "not in transformers " + transformers.__version__]), flush=True)
        continue
    try:
        kwargs = torch.load(Path(job["folder"]) / "inputs.pt", weights_only=True)
        before = load(cls, Path(job["folder"]) / "tied", kwargs)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:90] if str(error).strip() else ""
        print(json.dumps([*label, f"does not load the tied source: {type(error).__name__} {reason}"]), flush=True)
        continue
    verdicts = []
    for verb in job["verbs"]:
        after = load(cls, Path(job["folder"]) / verb, kwargs)
        found = []
        if not torch.equal(before[0].view(torch.uint8), after[0].view(torch.uint8)):
            found.append(f"logits differ by {(before[0] - after[0]).abs().max().item():.3g}")
        if after[1] - before[1]:
            found.append(f"missing {sorted(after[1] - before[1])}")
        if after[2] - before[2]:
            found.append(f"unexpected {sorted(after[2] - before[2])}")
        verdicts.append(f"{verb} " + ("; ".join(found) or "exact"))
    print(json.dumps([*label, ", ".join(verdicts)]), flush=True)
"""


def prepare(name: str, layout: str, folder: Path) -> list[str]:
    """The tied model, its inputs, and what tieconv makes of it; returns the verbs that were not refused."""
    import torch

    import tieconv
    from fixtures import zoo
    from tests.reload.layouts import Subject

    subject = Subject(name)
    subject.save(folder / "tied", layout)
    torch.save(dict(zoo.inputs(subject.tied)), folder / "inputs.pt")
    verbs: list[str] = []
    try:
        tieconv.plan_untie(folder / "tied").execute(folder / "untie")
        verbs.append("untie")
        tieconv.plan_retie(folder / "untie").execute(folder / "retie")
        verbs.append("retie")
    except tieconv.TieconvError as error:
        print(f"{name:50} {layout:12} refused: {error.message}")
    try:
        tieconv.plan_untie(folder / "tied", keep_flag=True).execute(folder / "keep-flag")
        verbs.append("keep-flag")
    except tieconv.TieconvError as error:
        print(f"{name:50} {layout:12} refused: {error.message}")
    return verbs


def judge(python: str, names: list[str]) -> list[tuple[str, str, str]]:
    """Each class, each layout, and what the older transformers says of it."""
    from tests.reload.layouts import LAYOUTS

    with tempfile.TemporaryDirectory() as root:
        jobs = []
        for name, layout in product(names, LAYOUTS):
            folder = Path(root) / name / layout
            folder.mkdir(parents=True)
            verbs = prepare(name, layout, folder)
            jobs.append({"class": name, "layout": layout, "folder": str(folder), "verbs": verbs})
        lines = "".join(json.dumps(job) + "\n" for job in jobs if job["verbs"])
        result = subprocess.run([python, "-c", JUDGE], input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [tuple(json.loads(line)) for line in result.stdout.splitlines()]


def _is_wrong(name: str, verdict: str) -> bool:
    return "differ" in verdict or (name not in KNOWN and ("missing" in verdict or "unexpected" in verdict))


def tally(verdicts: list[tuple[str, str, str]]) -> dict[str, Counter[str]]:
    """Layout -> how often each verdict, reasons cut off."""
    found: dict[str, Counter[str]] = {}
    for _, layout, verdict in verdicts:
        found.setdefault(layout, Counter())[verdict.split(":")[0]] += 1
    return found


def main() -> int:
    """Print a line a class; 1 where a verdict is not exact."""
    from tests.reload.layouts import SAMPLE

    python, names = sys.argv[1], sys.argv[2:] or list(SAMPLE)
    verdicts = judge(python, names)
    for name, layout, verdict in verdicts:
        print(f"{name:50} {layout:12} {verdict}")
    for layout, words in tally(verdicts).items():
        print(layout, dict(words))
    wrong = [f"{name} {layout}" for name, layout, verdict in verdicts if _is_wrong(name, verdict)]
    print(f"{len(verdicts)} judged, {len(wrong)} wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
