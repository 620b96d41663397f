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

from tieconv.errors import UnreadableError
from tieconv.integrations.torch import OnFault, Watch
from tieconv.text import shown

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

log = logging.getLogger(__name__)


class TieCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Checks tied weights when training begins, at each save, and when training ends. At steps it does nothing.

    ``on_fault`` is ``warn`` (a `BrokenTieWarning`) or ``raise`` (a `BrokenTieError`, which ends the training). Only the
    process of rank 0 checks. Sharded parameters are not gathered: their identities, the local shards and the files of
    the checkpoint are checked. A checkpoint whose format tieconv cannot read is logged at level INFO.
    """

    def __init__(self, on_fault: OnFault = "warn") -> None:
        self.on_fault: OnFault = on_fault
        self._watch: Watch | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remember which names are one parameter, and check the config against them."""
        self._watch = None
        if state.is_world_process_zero and kwargs.get("model") is not None:
            self._watch = Watch(kwargs["model"], self.on_fault)
            self._watch.check("at the start of training")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check the identities in memory, then the files of the checkpoint."""
        if self._watch is None:
            return
        step = f"at step {state.global_step}"
        self._watch.check_ties(step)
        directory = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        try:
            self._watch.check_saved(directory, step)
        except UnreadableError as error:
            log.info("tieconv did not check %s: %s", shown(directory), error.message)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the identities and the config."""
        if self._watch is not None:
            self._watch.check("at the end of training")
