"""Trainers and callbacks of the tests: only what runs them loads the trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tieconv.integrations.transformers import TieCallback as TieCallback


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
