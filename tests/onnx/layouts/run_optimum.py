"""Generate greedy tokens with optimum's models for each job of stdin; print one line of JSON each.

The interpreter needs optimum-onnx, onnxruntime, torch and transformers. A job has the folder of an export, the rows of
ids with their attention masks, and the number of tokens. For an encoder-decoder, it also has the decoder's first token.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def answer(job: dict[str, Any]) -> list[list[int]]:
    """Return the new tokens of each row."""
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForMaskedLM, ORTModelForSeq2SeqLM

    ids, mask = torch.tensor(job["ids"]), torch.tensor(job["mask"])
    if job["masked"]:
        given = {"input_ids": ids, "attention_mask": mask}
        made = ORTModelForMaskedLM.from_pretrained(job["folder"])
        if "token_type_ids" in made.input_names:
            given["token_type_ids"] = torch.zeros_like(ids)
        masked: list[list[int]] = made(**given).logits.argmax(-1).tolist()
        return masked
    encodes = "start" in job
    model = (ORTModelForSeq2SeqLM if encodes else ORTModelForCausalLM).from_pretrained(job["folder"])
    assert model.can_use_cache
    start = {"decoder_start_token_id": job["start"]} if encodes else {}
    made = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=job["steps"], do_sample=False, num_beams=1, **start
    )
    tokens: list[list[int]] = made[:, 1 if encodes else ids.shape[1] :].tolist()
    return tokens


def main() -> None:
    """Answer each job of stdin with a line."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        try:
            found: dict[str, Any] = {"tokens": answer(json.loads(line))}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
