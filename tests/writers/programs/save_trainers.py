"""TRL's value head, DeepSpeed's ZeRO, and AdapterHub's adapters: each saves a model of transformers its way."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from fixtures import zoo
from tests.writers.program import PROMPT, Case, Facts, facts, last_logits, serve, stored_tensors, without_sampling

TOOL = sys.argv[1]
KINDS = ("LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM", "Qwen2ForCausalLM")


def build(kind: str, tied: bool) -> Any:
    return without_sampling(zoo.build(kind, tie=tied))


def trl_save(kind: str, tied: bool, safe: bool, folder: Path) -> Facts:
    """Save a model with the value head of PPO."""
    from trl import AutoModelForCausalLMWithValueHead

    with tempfile.TemporaryDirectory() as source:
        build(kind, tied).save_pretrained(source)
        model = AutoModelForCausalLMWithValueHead.from_pretrained(source)
    model.save_pretrained(folder, safe_serialization=safe)
    return facts(model.pretrained_model, folder)


def trl_read(folder: Path) -> Any:
    """Return the logits of the last position and the values of all of them.

    TRL looks for the shards of a directory on the Hub, also for its own; so its parts read them here.
    """
    from trl import AutoModelForCausalLMWithValueHead as Model

    if any(folder.glob("*.index.json")):
        model = Model(transformers.AutoModelForCausalLM.from_pretrained(folder))
        model.is_peft_model = False
        start = "v_head."
        head = {
            key.removeprefix(start): value for key, value in stored_tensors(folder).items() if key.startswith(start)
        }
        model.v_head.load_state_dict(head)
    else:
        model = Model.from_pretrained(str(folder))
    with torch.no_grad():
        logits, _, values = model.eval()(torch.tensor([PROMPT]))
    return torch.cat((logits[0, -1], values[0])).float().numpy()


def deepspeed_save(kind: str, tied: bool, stage: int, folder: Path) -> Any:
    """Train a step and save; return the model."""
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29533", "RANK": "0", "WORLD_SIZE": "1",
                   "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}  # fmt: skip
    import deepspeed

    model = build(kind, tied)
    optimiser = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    words = {"train_micro_batch_size_per_gpu": 1, "optimizer": optimiser, "zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=model, config={**words, "bf16": {"enabled": stage > 0}})
    ids = torch.tensor([PROMPT])
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    engine.save_checkpoint(str(folder), tag="step")
    return model


def deepspeed_merge(kind: str, tied: bool, stage: int, safe: bool, folder: Path) -> Facts:
    """Merge a ZeRO checkpoint, as its script `zero_to_fp32.py` does."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    with tempfile.TemporaryDirectory() as source:
        model = deepspeed_save(kind, tied, stage, Path(source))
        convert_zero_checkpoint_to_fp32_state_dict(source, str(folder), safe_serialization=safe)
    model.config.save_pretrained(folder)
    return {"tied": tied}


def deepspeed_state(kind: str, tied: bool, stage: int, folder: Path) -> Facts:
    deepspeed_save(kind, tied, stage, folder)
    for path in (folder / "step").iterdir():
        path.rename(folder / path.name)
    return {"tied": tied}


def deepspeed_read_state(kind: str, tied: bool, file: Path) -> Any:
    model = build(kind, tied)
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        model.load_state_dict(load_file(file))
    else:
        model.load_state_dict(torch.load(file, weights_only=False)["module"])
    return last_logits(model)


def read(kind: str, folder: Path) -> Any:
    return last_logits(getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32))


def adapters_save(kind: str, tied: bool, part: str, folder: Path) -> Facts:
    """Save a model whose head is the library's: its last layer is tied with the embedding."""
    import adapters

    torch.manual_seed(0)
    model = adapters.AutoAdapterModel.from_config(build(kind, tied).config)
    model.add_causal_lm_head("words")
    if part != "model":
        model.add_adapter("one", config="lora")
        model.set_active_adapters("one")
    if part == "adapter":
        model.save_adapter(folder, "one")
    else:
        model.save_pretrained(folder)
    return {"tied": model.heads["words"][-1].weight is model.get_input_embeddings().weight}


def adapters_read(folder: Path) -> Any:
    import adapters

    model = adapters.AutoAdapterModel.from_pretrained(folder)
    model.active_head = "words"
    return last_logits(model)


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for tied in (True, False):
            word = f"{kind.partition('For')[0].removesuffix('LMHeadModel')} {'tied' if tied else 'untied'}"
            if TOOL == "trl":
                for safe in (True, False):
                    yield Case(
                        f"{word} {'safetensors' if safe else 'bin'}", partial(trl_save, kind, tied, safe), trl_read
                    )
            elif TOOL == "deepspeed":
                for stage in (1, 2, 3):
                    for safe in (False, True)[: 1 if tied else 2]:  # safetensors refuses the two names of a tied head
                        made = partial(deepspeed_merge, kind, tied, stage, safe)
                        title = f"{word} ZeRO {stage} merged to {'safetensors' if safe else 'bin'}"
                        yield Case(title, made, partial(read, kind))
                yield Case(f"{word} ZeRO 3", partial(deepspeed_state, kind, tied, 3), None, named=("refused",))
                yield Case(f"{word} without ZeRO", partial(deepspeed_state, kind, tied, 0),
                           partial(deepspeed_read_state, kind, tied), file="mp_rank_00_model_states.pt")  # fmt: skip
            elif kind in KINDS[:2]:  # the library has neither OPT nor Qwen2
                for part in ("model", "model with an adapter"):
                    yield Case(f"{word} {part}", partial(adapters_save, kind, tied, part), adapters_read)
                yield Case(f"{word} adapter", partial(adapters_save, kind, tied, "adapter"), None, named=("refused",))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
