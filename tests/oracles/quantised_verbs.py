"""Load models before and after `tieconv set-tie auto`: ``python -m tests.oracles.quantised_verbs PYTHON``.

The quantisation config of each model lists a float head, or leaves out a head with codes. PYTHON is an interpreter with
transformers, compressed-tensors and bitsandbytes. Prints what transformers made of both; exits with 1 if it does not
load the result with its stored tables.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tieconv
from tests.oracles.measure import SCRIPTS, Runner
from tests.oracles.quantised_models import GONE, checkpoints, reference
from tieconv.checkpoint.quantised_matrix import HEAD

SCHEMES = ["packed", "by-class", "fp8", "bnb4", "bnb8"]
MENDED = ("listed", "dropped", "left-out")
LOADED = ("tied", "untied")


def main(python: str) -> int:
    """Compare; return 1 if transformers does not load a mended model."""
    SCRIPTS["quantised transformers"] = "run_quantised.py"
    runner, failed = Runner("quantised transformers", python), 0
    with tempfile.TemporaryDirectory() as work:
        for title, folder, stored in checkpoints(Path(work), SCHEMES, ["Llama"]):
            if stored[HEAD] not in MENDED or "quantised+" in title:
                continue
            path, mended = folder.with_suffix(".npz"), folder.with_suffix(".mended")
            reference(folder, stored, path)
            try:
                tieconv.plan_set_tie("auto", folder).execute(mended)
            except tieconv.RefusedError as error:  # for example, no group of the config can list the head
                print(f"ok    {title}: refused, {error.message}"[:200], flush=True)
                continue
            head = "absent" if stored[HEAD] in GONE else "H"
            job = {
                "id": title, "class": "LlamaForCausalLM", "layout": "", "by tables": True, "prompt": [3, 9, 27],
                "reference": str(path), "stored": {"bias": "absent", "embedding": True, "head": head},
            }  # fmt: skip
            before, after = (runner.observe({**job, "folder": str(model)})["outcome"] for model in (folder, mended))
            failed += after not in LOADED
            print(
                f"{'ok   ' if after in LOADED else 'WRONG'} {title}: {before}, after set-tie auto {after}", flush=True
            )
    runner.close()
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
