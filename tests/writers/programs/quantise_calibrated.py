"""llm-compressor and ModelOpt, each in its environment, with and without the head."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from fixtures import zoo
from tests.oracles.tokenizer import write_tokenizer
from tests.writers.program import PROMPT, Case, Facts, last_logits, serve, without_sampling

TOOL = sys.argv[1]
KINDS = ("LlamaForCausalLM", "Qwen2ForCausalLM")
SIZES = {"vocab_size": 128, "intermediate_size": 128, "hidden_size": 128, "head_dim": 32}
SCHEMES = {
    "llm-compressor": ("W4A16", "W8A16", "W8A8", "FP8_DYNAMIC", "NVFP4A16", "MXFP4A16"),
    "modelopt": ("INT4_AWQ_CFG", "FP8_DEFAULT_CFG", "NVFP4_DEFAULT_CFG"),
}


UNREAD = ("NVFP4A16", "MXFP4A16")
"""transformers on a CPU does not run these codes."""


def llm_compressor(source: str, scheme: str, head: bool, folder: Path) -> None:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    ignored = [] if head else ["lm_head"]
    oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=ignored))
    model.save_pretrained(folder, save_compressed=True)


def modelopt(source: str, scheme: str, head: bool, folder: Path) -> None:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    mtq.quantize(model, getattr(mtq, scheme), lambda model: model(torch.tensor([PROMPT])))
    export_hf_checkpoint(model, export_dir=str(folder))


TOOLS = {"llm-compressor": llm_compressor, "modelopt": modelopt}


def write(kind: str, tied: bool, scheme: str, head: bool, folder: Path) -> Facts:
    with tempfile.TemporaryDirectory() as scratch:
        source = f"{scratch}/model"
        model = without_sampling(zoo.build(kind, tie=tied, **SIZES).to(torch.bfloat16))
        model.save_pretrained(source)
        write_tokenizer(Path(source), 128)
        TOOLS[TOOL](source, scheme, head, folder)
    return {"tied": tied} if not head else {}


def read(folder: Path) -> Any:
    return last_logits(transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu"))


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for tied in (True, False):
            for scheme in SCHEMES[TOOL]:
                for head in (False, True)[: 1 if tied or TOOL == "modelopt" else 2]:
                    title = f"{kind.partition('For')[0]} {'tied' if tied else 'untied'} {scheme}"
                    yield Case(
                        title + " with head" * head, partial(write, kind, tied, scheme, head),
                        None if TOOL == "modelopt" or scheme in UNREAD else read,
                    )  # fmt: skip


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
