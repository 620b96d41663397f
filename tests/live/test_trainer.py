"""`TieCallback` in real trainings of tiny models on the CPU."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import tieconv
from tests.lazy import transformers
from tests.live import planted
from tieconv.integrations.pytest import assert_ties
from tieconv.integrations.torch import BrokenTieError, BrokenTieWarning

pytestmark = pytest.mark.filterwarnings("ignore", "error::tieconv.integrations.torch.BrokenTieWarning")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tied", [True, False])
def test_a_healthy_training(tied: bool, tmp_path: Path) -> None:
    """It is silent, and the checkpoint was checked."""
    from tests.live.trainers import TieCallback, train

    callback = TieCallback("raise")
    train(planted.llama(tied=tied), tmp_path, callback)
    assert (tmp_path / "checkpoint-2" / "model.safetensors").exists()


@pytest.mark.parametrize("strategy", ["best", "steps"])
@pytest.mark.parametrize("evaluates", [True, False])
@pytest.mark.parametrize("saves", [True, False])
def test_when_the_model_is_checked_before_a_save(strategy: str, evaluates: bool, saves: bool) -> None:
    """With the strategy "best" an evaluation may end with a save; a run without a watch checks nothing."""
    from tieconv.integrations.transformers import TieCallback

    callback, checked = TieCallback(), Mock()
    control = SimpleNamespace(should_evaluate=evaluates, should_save=saves)
    step: Any = (SimpleNamespace(save_strategy=strategy), SimpleNamespace(global_step=3), control)
    callback.on_step_end(*step)
    callback._watch = checked
    callback.on_step_end(*step)
    asked = saves or (evaluates and strategy == "best")
    assert [call.args for call in checked.check.mock_calls] == [("before the save at step 3",)] * asked


def adapters(peft: Any) -> dict[str, Any]:
    """Adapters that leave the tie of the base model as it is, by name.

    One with ``ensure_weight_tying`` is none of them: peft 0.21.2 merges its one change twice, as PEF001 says.
    """
    task, rows = {"task_type": "CAUSAL_LM"}, [3, 5]
    lora = {"target_modules": ["q_proj"], **task}
    return {
        "rows of a LoRA": peft.LoraConfig(trainable_token_indices=rows, **lora),
        "rows of both": peft.LoraConfig(trainable_token_indices={"embed_tokens": rows, "lm_head": rows}, **lora),
        "rows alone": peft.TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=rows, **task),
        "prompt tuning": peft.PromptTuningConfig(num_virtual_tokens=2, **task),
        "prefix tuning": peft.PrefixTuningConfig(num_virtual_tokens=2, **task),
        "P-tuning": peft.PromptEncoderConfig(num_virtual_tokens=2, encoder_hidden_size=8, **task),
        "modules_to_save": peft.LoraConfig(modules_to_save=["embed_tokens", "lm_head"], **lora),
    }


@pytest.mark.slow
def test_adapters_that_keep_the_tie(tmp_path: Path) -> None:
    """No finding above a note, no fault of the ties, and no training that ends early."""
    peft = pytest.importorskip("peft")
    from tests.live.trainers import TieCallback, train

    for tied in (True, False):
        for name, config in adapters(peft).items():
            model = peft.get_peft_model(planted.llama(tied=tied), config)
            inspected = tieconv.inspect(model)
            assert {str(finding.level) for finding in inspected.findings} <= {"note"}, (tied, name, inspected.findings)
            assert inspected.base and inspected.base.config.effective is tied, (tied, name)
            assert bool(inspected.base.word_tie and inspected.base.word_tie.declared) is tied, (tied, name)
            rows = [finding.message for finding in inspected.findings if finding.rule == "PEF005"]
            assert all(f"base model is {'tied' if tied else 'untied'}" in message for message in rows), (tied, name)
            assert bool(rows) is name.startswith("rows"), (tied, name)
            assert_ties(model)
            if tied and name in ("rows of a LoRA", "prompt tuning"):
                trainer = train(model, tmp_path / name, TieCallback("raise"))
                assert trainer.state.global_step == 2, name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", [planted.copy_head, planted.change_head, planted.clear_flag, planted.quantise_head])
def test_faults_during_the_training(fault: Any, tmp_path: Path) -> None:
    """`raise` ends the training, `warn` reports and goes on."""
    from tests.live.trainers import At, TieCallback, train

    with pytest.raises(BrokenTieError) as caught:
        train(planted.llama(), tmp_path / "raise", At(fault), TieCallback("raise"))
    assert caught.value.faults[0].rule.startswith("TIE")
    with pytest.warns(BrokenTieWarning, match="TIE00"):
        trainer = train(planted.llama(), tmp_path / "warn", At(fault), TieCallback())
    assert trainer.state.global_step == 2


def test_a_fault_at_the_start(tmp_path: Path) -> None:
    """No step runs."""
    from tests.live.trainers import TieCallback, train

    model = planted.llama()
    planted.copy_head(model)
    with pytest.raises(BrokenTieError, match="at the start of training"):
        train(model, tmp_path, TieCallback("raise"))


def test_a_checkpoint_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the training goes on."""
    from tests.live.trainers import TieCallback

    callback = TieCallback("raise")
    arguments = type("Arguments", (), {"output_dir": str(tmp_path)})
    state = type("State", (), {"is_world_process_zero": True, "global_step": 3})
    callback.on_train_begin(arguments, state, None, model=planted.llama())
    with caplog.at_level(logging.INFO, "tieconv.integrations.transformers"):
        callback.on_save(arguments, state, None)
    assert "tieconv did not check" in caplog.text


def test_another_rank_checks_nothing() -> None:
    """Only rank 0 looks."""
    from tests.live.trainers import TieCallback

    model = planted.llama()
    planted.copy_head(model)
    callback = TieCallback("raise")
    state = type("State", (), {"is_world_process_zero": False, "global_step": 0})
    callback.on_train_begin(None, state, None, model=model)
    callback.on_save(None, state, None)
    callback.on_train_end(None, state, None)


def test_steps_cost_nothing() -> None:
    """A step without a save looks at no parameter."""
    callback, arguments, state, control = hooks(planted.llama())
    callback._watch = object()  # type: ignore[assignment]  # any use of it raises
    callback.on_step_end(arguments, state, control)
    callback.on_epoch_end(arguments, state, control)


def hooks(model: Any, out: str = "run") -> tuple[Any, Any, Any, Any]:
    """A callback after the start of a training, and what the trainer hands to its hooks."""
    from tests.live.trainers import TieCallback

    arguments = type("Arguments", (), {"output_dir": out, "save_strategy": "steps"})()
    state = type("State", (), {"is_world_process_zero": True, "global_step": 2})()
    control = type("Control", (), {"should_save": False, "should_evaluate": False})()
    callback = TieCallback("raise")
    callback.on_train_begin(arguments, state, control, model=model)
    return callback, arguments, state, control


def test_the_hooks_come_before_older_checkpoints_are_deleted(tmp_path: Path) -> None:
    """In the order of the trainer: the step (or epoch) ends, files are written, states are asked for, `on_save`."""
    from tests.live.trainers import TieCallback

    for hook in ("on_step_end", "on_epoch_end"):
        for flag, strategy in (("should_save", "steps"), ("should_evaluate", "best")):
            model = planted.llama()
            callback, arguments, state, control = hooks(model, str(tmp_path))
            planted.copy_head(model)
            arguments.save_strategy = strategy
            setattr(control, flag, True)
            with pytest.raises(BrokenTieError, match="before the save at step 2"):
                getattr(callback, hook)(arguments, state, control)
    callback, *_ = hooks(planted.llama(tied=False), str(tmp_path))
    assert TieCallback.from_state(callback.state()).on_fault == "raise"  # no checkpoint yet, as in Trainer.__init__
    planted.llama().save_pretrained(tmp_path / "checkpoint-2")
    with pytest.raises(BrokenTieError, match=r"lacks lm_head\.weight"):
        callback.state()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["steps", "epoch", "best", "files"])
def test_the_last_good_checkpoint_stays(strategy: str, tmp_path: Path) -> None:
    """With `save_total_limit=1`, a fault of the second save leaves the first checkpoint on the disk."""
    from tests.live.trainers import At, LosesTheHead, TieCallback, train

    more: dict[str, Any] = {"save_total_limit": 1, "save_strategy": strategy if strategy != "files" else "steps"}
    if strategy == "best":
        more |= {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "greater_is_better": True}
    fault = At(planted.change_head, 5 if strategy == "epoch" else 3)
    callbacks, kind, tied = [fault, TieCallback("raise")], transformers.Trainer, True
    if strategy == "files":
        callbacks, kind, tied = callbacks[1:], LosesTheHead, False
    with pytest.raises(BrokenTieError, match=r"lacks lm_head" if strategy == "files" else "before the save"):
        train(planted.llama(tied=tied), tmp_path, *callbacks, steps=8, kind=kind, **more)
    good = tmp_path / ("checkpoint-4" if strategy == "epoch" else "checkpoint-2")
    assert (good / "model.safetensors").exists(), [*tmp_path.iterdir()]


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
    from tests.live.trainers import At, TieCallback

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
