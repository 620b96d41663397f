"""Watch the ties of the model that a `transformers.Trainer` trains, and the checkpoints that it saves.

```python
from tieconv.integrations.transformers import TieCallback

trainer = Trainer(model, args, callbacks=[TieCallback()])
```
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from tieconv.errors import UnreadableError
from tieconv.integrations.torch import OnFault, Watch
from tieconv.text import shown

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

log = logging.getLogger(__name__)


class TieCallback(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers is not followed
    """Checks tied weights when training begins, before and after each save, and when training ends.

    ``on_fault`` is ``warn`` (a `BrokenTieWarning`) or ``raise`` (a `BrokenTieError`, which ends the training). Both
    checks of a save come before the trainer deletes older checkpoints. Only the process of rank 0 checks. Sharded
    parameters are not gathered: their identities, the local shards and the files of the checkpoint are checked. A
    checkpoint whose format tieconv cannot read is logged at level INFO. At steps without a save it does nothing.
    """

    def __init__(self, on_fault: OnFault = "warn") -> None:
        self.on_fault: OnFault = on_fault
        self._watch: Watch | None = None
        self._run: tuple[TrainingArguments, TrainerState] | None = None
        self._checked: int | None = None  # the step of the last checkpoint whose files were checked

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remember which names are one parameter, and check the config against them."""
        self._watch, self._run, self._checked = None, (args, state), None
        if state.is_world_process_zero and kwargs.get("model") is not None:
            self._watch = Watch(kwargs["model"], self.on_fault)
            self._watch.check("at the start of training")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check the model in memory if the trainer is about to save it."""
        # The strategy "best" decides after the evaluation, when it asks no callback any more.
        best = control.should_evaluate and args.save_strategy == "best"
        if self._watch is not None and (control.should_save or best):
            self._watch.check(f"before the save at step {state.global_step}")

    on_epoch_end = on_step_end

    def state(self) -> dict[str, dict[str, str]]:
        """Check the files, and return what a resumed training makes this callback from.

        The trainer calls it between the files of a checkpoint and the deletion of older checkpoints.
        """
        self._check_files()
        return {"args": {"on_fault": self.on_fault}, "attributes": {}}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check the identities in memory, and the files if `state` did not."""
        if self._watch is not None:
            self._watch.check_ties(f"at step {state.global_step}")
            self._check_files()

    def _check_files(self) -> None:
        if self._watch is None or self._run is None or self._checked == self._run[1].global_step:
            return
        arguments, state = self._run
        directory = os.path.join(arguments.output_dir, f"checkpoint-{state.global_step}")
        try:
            self._watch.check_saved(directory, f"at step {state.global_step}")
            self._checked = state.global_step
        except UnreadableError as error:
            log.info("tieconv did not check %s: %s", shown(directory), error.message)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the identities and the config."""
        if self._watch is not None:
            self._watch.check("at the end of training")
