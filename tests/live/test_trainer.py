"""`TieCallback` in real trainings of tiny models on the CPU."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.live import planted  # noqa: E402
from tieconv.integrations.torch import BrokenTieError, BrokenTieWarning  # noqa: E402
from tieconv.integrations.transformers import TieCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::tieconv.integrations.torch.BrokenTieWarning")


class At(transformers.TrainerCallback):  # type: ignore[misc]
    """Plants a fault after the first step."""

    def __init__(self, fault: Any) -> None:
        self.fault = fault

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.fault(kwargs["model"])


def train(model: Any, out: Path, *callbacks: Any, steps: int = 2) -> Any:
    """A few steps, with a save at the second."""
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
    arguments = transformers.TrainingArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=2, save_steps=2, use_cpu=True,
        report_to=[], disable_tqdm=True, logging_strategy="no", save_only_model=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=list(callbacks))
    trainer.train()
    return trainer


@pytest.mark.parametrize("tied", [True, False])
def test_a_healthy_training(tied: bool, tmp_path: Path) -> None:
    """It is silent, and the checkpoint was checked."""
    callback = TieCallback("raise")
    train(planted.llama(tied=tied), tmp_path, callback)
    assert (tmp_path / "checkpoint-2" / "model.safetensors").exists()


@pytest.mark.parametrize("fault", [planted.copy_head, planted.change_head, planted.clear_flag, planted.quantise_head])
def test_faults_during_the_training(fault: Any, tmp_path: Path) -> None:
    """`raise` ends the training, `warn` reports and goes on."""
    with pytest.raises(BrokenTieError) as caught:
        train(planted.llama(), tmp_path / "raise", At(fault), TieCallback("raise"))
    assert caught.value.faults[0].rule.startswith("TIE")
    with pytest.warns(BrokenTieWarning, match="TIE00"):
        trainer = train(planted.llama(), tmp_path / "warn", At(fault), TieCallback())
    assert trainer.state.global_step == 2


def test_a_fault_at_the_start(tmp_path: Path) -> None:
    """No step runs."""
    model = planted.llama()
    planted.copy_head(model)
    with pytest.raises(BrokenTieError, match="at the start of training"):
        train(model, tmp_path, TieCallback("raise"))


def test_a_checkpoint_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the training goes on."""
    callback = TieCallback("raise")
    arguments = type("Arguments", (), {"output_dir": str(tmp_path)})
    state = type("State", (), {"is_world_process_zero": True, "global_step": 3})
    callback.on_train_begin(arguments, state, None, model=planted.llama())
    with caplog.at_level(logging.INFO, "tieconv.integrations.transformers"):
        callback.on_save(arguments, state, None)
    assert "tieconv did not check" in caplog.text


def test_another_rank_checks_nothing() -> None:
    """Only rank 0 looks."""
    model = planted.llama()
    planted.copy_head(model)
    callback = TieCallback("raise")
    state = type("State", (), {"is_world_process_zero": False, "global_step": 0})
    callback.on_train_begin(None, state, None, model=model)
    callback.on_save(None, state, None)
    callback.on_train_end(None, state, None)


def test_steps_cost_nothing() -> None:
    """The callback has no method of its own that a step calls."""
    own = {name for name in vars(TieCallback) if name.startswith("on_")}
    assert own == {"on_train_begin", "on_save", "on_train_end"}


def test_a_check_of_identities_is_cheap() -> None:
    """It reads no value: it takes less time than one forward pass of the tiny model."""
    from tieconv.live.watched_ties import TieWatch

    model = planted.llama()
    watch = TieWatch(model)
    times = []
    for _ in range(5):
        start = time.process_time()
        assert list(watch.lost()) == []
        times.append(time.process_time() - start)
    assert min(times) < 0.05


@pytest.mark.slow
def test_sft_trainer(tmp_path: Path) -> None:
    """TRL's trainer calls the callback as transformers' does."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = datasets.Dataset.from_dict({"input_ids": [list(range(8))] * 8})
    config = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=2, save_steps=2, per_device_train_batch_size=2, use_cpu=True, bf16=False,
        report_to=[], disable_tqdm=True, save_only_model=True, gradient_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    from tokenizers import Tokenizer, models

    words = {f"w{index}": index for index in range(90)} | {"<eos>": 90, "<pad>": 91}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<pad>")), eos_token="<eos>", pad_token="<pad>"
    )
    for fault in (None, planted.change_head):
        callbacks = [TieCallback("raise"), *([At(fault)] if fault else [])]
        trainer = trl.SFTTrainer(
            planted.llama(), args=config, train_dataset=rows, processing_class=tokenizer, callbacks=callbacks
        )
        if fault is None:
            trainer.train()
        else:
            with pytest.raises(BrokenTieError, match="TIE001"):
                trainer.train()
