"""Generate greedy tokens with optimum's models for each job of stdin; print one line of JSON each.

The interpreter needs optimum-onnx, onnxruntime, torch and transformers. A job has the folder of an export, the rows of
ids with their attention masks, and the number of tokens. For an encoder-decoder, it also has the decoder's first token.
For an encoder of sound or images, it has the name, the shape and the values of its features.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def answer(job: dict[str, Any]) -> list[list[int]]:
    """Return the new tokens of each row."""
    import torch
    from optimum.onnxruntime import (
        ORTModelForCausalLM,
        ORTModelForMaskedLM,
        ORTModelForSeq2SeqLM,
        ORTModelForSpeechSeq2Seq,
        ORTModelForVision2Seq,
    )

    ids, mask = torch.tensor(job["ids"]), torch.tensor(job["mask"])
    if job["masked"]:
        given = {"input_ids": ids, "attention_mask": mask}
        made = ORTModelForMaskedLM.from_pretrained(job["folder"])
        if "token_type_ids" in made.input_names:
            given["token_type_ids"] = torch.zeros_like(ids)
        masked: list[list[int]] = made(**given).logits.argmax(-1).tolist()
        return masked
    encodes = "start" in job
    inputs = {"input_ids": ids, "attention_mask": mask}
    cls = ORTModelForSeq2SeqLM if encodes else ORTModelForCausalLM
    if "features" in job:
        inputs = {job["features"]: torch.tensor(job["values"]).reshape(job["shape"])}
        cls = ORTModelForVision2Seq if job["features"] == "pixel_values" else ORTModelForSpeechSeq2Seq
    model = cls.from_pretrained(job["folder"])
    assert model.can_use_cache
    start = {"decoder_start_token_id": job["start"]} if encodes else {}
    made = model.generate(**inputs, max_new_tokens=job["steps"], do_sample=False, num_beams=1, **start)
    # Whisper's own `generate` does not return the decoder's first token.
    begin = int(bool((made[:, 0] == job["start"]).all())) if encodes else ids.shape[1]
    tokens: list[list[int]] = made[:, begin:].tolist()
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
