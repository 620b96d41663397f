"""Hold the cells of quantised tables against the programs: ``python -m tests.oracles.quantised LOADER PYTHON``.

LOADER is ``transformers``, ``llama.cpp``, ``mlx-lm``, ``vllm``, ``vllm-0.28`` or ``genai``. PYTHON is the interpreter
of its environment. Schemes may follow. For transformers, it needs the package of each quantiser too. Each checkpoint is
a tiny Llama, for vLLM and genai also a Qwen 2, whose embedding and head are float or quantised, under each tie flag.
Prints each combination with the prediction and with what the program did, and then counts; exits with 1 if they differ.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.oracles.measure import SCRIPTS, Runner
from tests.oracles.quantised_models import GONE, SCHEMES, checkpoints, reference
from tieconv import inspect
from tieconv.checkpoint.quantised_matrix import HEAD

LOADERS = {
    "transformers": ("transformers", "5.x"),
    "llama.cpp": ("llama.cpp", "2026"),
    "mlx-lm": ("mlx-lm", "0.32"),
    "vllm": ("vllm", ">=0.29"),
    "vllm-0.28": ("vllm", "<0.29"),
    "genai": ("onnxruntime-genai", "0.18"),
}
SCRIPTS |= {
    "quantised transformers": "run_quantised.py",
    "quantised mlx-lm": "run_quantised_mlx.py",
    "quantised vllm": "run_quantised_vllm.py",
    "quantised onnxruntime-genai": "run_quantised_genai.py",
    "quantised llama.cpp": SCRIPTS["llama.cpp"],
}
READ_BY_LLAMA_CPP = ["packed", "by-class", "fp8", "gptq", "block-fp8"]


def main(loader: str, python: str, *schemes: str) -> int:
    """Compare; return 1 if an answer differs."""
    name, version = LOADERS[loader]
    runner, counts = Runner(f"quantised {name}", python), Counter[str]()
    kinds = ["Llama", "Qwen2"] if name in ("vllm", "onnxruntime-genai") else ["Llama"]
    chosen = list(schemes) or (READ_BY_LLAMA_CPP if name == "llama.cpp" else list(SCHEMES))
    with tempfile.TemporaryDirectory() as work:
        for title, folder, stored in checkpoints(Path(work), chosen, kinds):
            path = folder.with_suffix(".npz")
            reference(folder, stored, path)
            head = "absent" if stored[HEAD] in GONE else "H"
            job = {
                "id": title, "folder": str(folder), "class": f"{title.partition(' ')[0]}ForCausalLM", "layout": "",
                "by tables": True, "prompt": [3, 9, 27], "reference": str(path), "head": "lm_head.weight",
                "stored": {"bias": "absent", "embedding": True, "head": head},
            }  # fmt: skip
            seen = runner.observe(job)
            answers = inspect(folder, consumers=name).consumers
            answer = next(each for each in answers if (each.name, each.version) == (name, version))
            predicted, detail = str(answer.outcome), answer.detail
            unclear = predicted == "unknown" or seen["outcome"] == "not run"
            either = predicted == "random" and seen["outcome"] == "error"  # the memory of the codes is uninitialised
            right = predicted == seen["outcome"] or (either and "it fails or" in detail)
            verdict = "ok   " if right else "?    " if unclear else "WRONG"
            counts[verdict.strip()] += 1
            print(f"{verdict} {title}: {predicted}, seen {seen['outcome']} {seen['why']}"[:220], flush=True)
    runner.close()
    print(dict(counts))
    return int(counts["WRONG"] > 0)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
