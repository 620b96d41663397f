"""`mlx_vlm.convert`: text models and models with pictures, without quantisation and with; its loader reads results."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm import convert
from mlx_vlm.utils import load_model
from safetensors.torch import load_file, save_file

from fixtures import zoo
from tests.oracles.checkpoints import older_keys
from tests.oracles.tokenizer import write_tokenizer
from tests.writers.program import PROMPT, Case, Facts, facts, serve

mx.set_default_device(mx.cpu)
KINDS = {
    "LlamaForCausalLM": "", "Qwen2ForCausalLM": "", "Qwen3ForCausalLM": "",
    "LlavaForConditionalGeneration": "CLIPImageProcessor",
    "Qwen2VLForConditionalGeneration": "Qwen2VLImageProcessor",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2VLImageProcessor",
    "Mistral3ForConditionalGeneration": "PixtralImageProcessor",
    "Idefics3ForConditionalGeneration": "Idefics3ImageProcessor",
}  # fmt: skip
"""Each class and its image processor."""
UNTIED_ONLY = ("Idefics3ForConditionalGeneration",)
"""mlx-vlm 0.7.10 asks for a head whatever the flag says."""
MODES: dict[str, dict[str, Any]] = {
    "float": {},
    "bfloat16": {"dtype": "bfloat16"},
    "4 bits": {"quantize": True, "q_bits": 4, "q_group_size": 32},
    "8 bits": {"quantize": True, "q_bits": 8, "q_group_size": 32},
    "mxfp4": {"quantize": True, "q_mode": "mxfp4", "q_group_size": 32},
    "mixed 4 and 6": {"quantize": True, "quant_predicate": "mixed_4_6"},
}


def hub_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config as the hub has it: Qwen's with the text model at its top."""
    made = older_keys(config)
    if made["model_type"].startswith("qwen2_"):
        text = made.pop("text_config")
        sections = text.pop("rope_parameters")["mrope_section"]
        made = text | made | {"rope_scaling": {"type": "mrope", "mrope_section": sections}}
        made["vision_config"]["model_type"] = made["model_type"]
    return made


def hub_names(file: Path) -> None:
    """Give LLaVA's vision tower the names that the hub has; transformers 5 saves shorter ones."""
    tensors = load_file(file)
    short, long = "vision_tower.", "vision_tower.vision_model."
    save_file({key.replace(short, long): value for key, value in tensors.items()}, file, {"format": "pt"})


def write(kind: str, tied: bool, words: dict[str, Any], folder: Path) -> Facts:
    model = zoo.build(kind, tie=tied)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch)
        model.save_pretrained(source)
        write_tokenizer(source, zoo.VOCAB)
        config = source / "config.json"
        config.write_text(json.dumps(hub_config(json.loads(config.read_text()))))
        if kind.startswith("Llava"):
            hub_names(source / "model.safetensors")
        if KINDS[kind]:
            pictures = {"image_processor_type": KINDS[kind], "size": {"height": 32, "width": 32}}
            (source / "preprocessor_config.json").write_text(json.dumps(pictures))
        folder.rmdir()
        convert(scratch, str(folder), **words)
    told = facts(model, folder)
    return {"tied": told["tied"]} if words else told


def read(folder: Path) -> Any:
    made = load_model(folder)(mx.array([PROMPT]), None, None)
    return np.array(made.logits[0, -1].astype(mx.float32))


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for tied in (False,) if kind in UNTIED_ONLY else (True, False):
            for title, words in MODES.items():
                name = f"{kind.partition('For')[0]} {'tied' if tied else 'untied'} {title}"
                made = partial(write, kind, tied, words)
                yield Case(name, made, read, reads=("safetensors",), loader="mlx-lm")


if __name__ == "__main__":
    serve(cases())
