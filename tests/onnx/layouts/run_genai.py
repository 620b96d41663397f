"""Generate greedy tokens with onnxruntime-genai for each job of stdin; print one line of JSON each.

The interpreter needs onnxruntime-genai. A job has the folder of an export, the rows of ids, and the number of tokens.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(job: dict[str, Any]) -> list[list[int]]:
    """Return the new tokens of each row. Each row runs alone: genai makes the attention mask itself."""
    import onnxruntime_genai as genai

    model, tokens = genai.Model(job["folder"]), []
    for ids, mask in zip(job["ids"], job["mask"], strict=True):
        prompt = [token for token, real in zip(ids, mask, strict=True) if real]
        settings = genai.GeneratorParams(model)
        settings.set_search_options(do_sample=False, max_length=len(prompt) + job["steps"])
        generator = genai.Generator(model, settings)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        tokens.append([int(token) for token in generator.get_sequence(0)][len(prompt) :])
    return tokens


def main() -> None:
    """Answer each job of stdin with a line."""
    for line in sys.stdin:
        try:
            found: dict[str, Any] = {"tokens": answer(json.loads(line))}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
