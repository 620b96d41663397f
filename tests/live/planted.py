"""Tiny models, the faults that are planted in them, and the trainers of the tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from fixtures import zoo
from tieconv.integrations.transformers import TieCallback as TieCallback


def llama(*, tied: bool = True) -> Any:
    """A tiny Llama."""
    return zoo.build("LlamaForCausalLM", tie=tied)


class Net(torch.nn.Module):
    """A module without config, with the two accessors and one parameter for both."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.out = torch.nn.Linear(8, 50, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.table

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.out


def replace_embedding(model: Any) -> None:
    """A resize by hand: the head keeps the old matrix."""
    model.model.embed_tokens = torch.nn.Embedding(120, 64)


def copy_head(model: Any) -> None:
    """A deep copy of one module has a parameter of its own."""
    model.lm_head = copy.deepcopy(model.lm_head)


def clear_flag(model: Any) -> None:
    """The config says untied, the parameters are one."""
    model.config.tie_word_embeddings = False


def share_storage(model: Any) -> None:
    """Two parameters of one storage: an optimizer updates both."""
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.data)


def change_head(model: Any) -> None:
    """An adapter merged into the head alone."""
    copy_head(model)
    model.lm_head.weight.data[3] += 1


def quantise_head(model: Any) -> None:
    """A quantiser replaces the head by one with rounded values."""
    weight = model.lm_head.weight.detach()
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight = torch.nn.Parameter((weight * 8).round() / 8)
    model.lm_head = head


FAULTS = {
    replace_embedding: "TIE001",
    copy_head: "TIE002",
    clear_flag: "TIE003",
    share_storage: "",
    change_head: "TIE001",
    quantise_head: "TIE001",
}
"""Each fault and the rule that reports it."""


class At(transformers.TrainerCallback):
    """Plants a fault after a step."""

    def __init__(self, fault: Any, step: int = 1) -> None:
        self.fault, self.step = fault, step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.fault(kwargs["model"])


def train(model: Any, out: Path, *callbacks: Any, steps: int = 2, kind: Any = transformers.Trainer, **more: Any) -> Any:
    """A few steps, with a save at each second."""
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
    arguments = transformers.TrainingArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=2, save_steps=2, use_cpu=True,
        report_to=[], disable_tqdm=True, logging_strategy="no", save_only_model=True, **more,
    )  # fmt: skip
    data = {"train_dataset": rows, "eval_dataset": rows[:1]}
    trainer = kind(model=model, args=arguments, callbacks=list(callbacks), **data)
    trainer.train()
    return trainer


class LosesTheHead(transformers.Trainer):
    """A trainer whose second save leaves out the head."""

    def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        if self.state.global_step == 4:
            path = Path(output_dir, "model.safetensors")
            tensors = load_file(path)
            del tensors["lm_head.weight"]
            save_file(tensors, path, metadata={"format": "pt"})
