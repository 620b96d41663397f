"""A plan: what tieconv will write, and its promises about that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field

from tieconv.checkpoint.files.model_files import Checkpoint, FileState
from tieconv.checkpoint.json_values import Printed, Summarised, plain, quoted
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.operation import LinkFile, Operation
from tieconv.checkpoint.write_plan.output import OutputText, OutputWeights, bytes_taken
from tieconv.checkpoint.write_plan.proof import Proof
from tieconv.checkpoint.write_plan.remote_transfer import RemoteTransfer
from tieconv.text import size
from tieconv.version import VERSION

PLAN_SCHEMA = "tieconv.plan/1"


@record
class NormFold:
    """Factors of the head's columns that a re-tie folds into the last norm.

    With ``values``, bytes by tensor, the embedding equals the head. Of the ``elements`` of ``head``, ``rounded`` are
    products that their type cannot represent.
    """

    values: Mapping[str, bytes]
    head: str
    rounded: int
    elements: int


@record
class TiePromise:
    """A tied group that a fresh inspection must report after the write: which names are stored, and tied or not.

    ``declared`` is ``None`` without a config.
    """

    canonical: str
    declared: bool | None
    stored: tuple[str, ...]
    absent: tuple[str, ...]


@record
class Promises:
    """What tieconv checks on the written bytes before the rename, besides the byte comparison."""

    effective: bool | None  # what the config then means; None without a config
    ties: tuple[TiePromise, ...]
    quantised: tuple[str, ...] = ()  # the roles of the quantised matrices, if the plan changes them


def plan_facts(command: str, source: str, output: str | None) -> tuple[str, ...]:
    """Return the facts about the outcome of a plan."""
    return quoted(source), command, "not executed" if output is None else f"written to {quoted(output)}"


def plan_rows(summary: str, notes: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a plan for notebooks."""
    return ("plan", summary), *(("note", note) for note in notes)


@record
class Plan(Summarised):
    """A promise, as pure data: making a plan reads nothing beyond its inspection.

    ``weights`` and ``texts`` are the files that change. ``links`` are those copied unchanged. ``removed`` are the
    source files without a successor. ``notes`` are warnings for the user. ``proofs`` are facts about dropped tensors,
    proved again before the rename.
    """

    command: str
    checkpoint: Checkpoint
    fingerprint: Mapping[str, FileState]
    operations: tuple[Operation, ...]
    weights: tuple[OutputWeights, ...]
    texts: tuple[OutputText, ...]
    links: tuple[LinkFile, ...]
    removed: tuple[str, ...]
    promises: Promises
    summary: str
    options: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        """True if the model already is as requested."""
        return not (self.weights or self.texts or self.removed)

    @property
    def bytes_written(self) -> int:
        """Bytes of tensors and documents in the files that change (headers not counted)."""
        tensors = sum(file.nbytes for file in self.weights)
        return tensors + sum(len(text.text.encode()) for text in self.texts)

    @property
    def bytes_read(self) -> int:
        """Bytes of source tensors in the changed files."""
        return sum(bytes_taken(content) for file in self.weights for content in file.contents)

    @property
    def bytes_linked(self) -> int:
        """Bytes of files that are copied unchanged."""
        return sum(link.bytes for link in self.links)

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.checkpoint.source), self.command, f"writes {size(self.bytes_written)}"

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.summary, self.notes)


@record
class Outcome(Printed):
    """The outcome of a plan. ``str()`` returns the `tieconv.plan/1` JSON.

    ``remote`` has the moved bytes of an output in an object store. Before the write they are a forecast.
    """

    plan: Plan
    executed: bool
    verified: bool
    output: str | None
    remote: RemoteTransfer | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`."""
        plan = self.plan
        return {
            "schema": PLAN_SCHEMA,
            "tieconv": VERSION,
            "command": plan.command,
            "source": plan.checkpoint.source,
            "summary": plan.summary,
            "operations": [_operation(operation) for operation in plan.operations],
            "files_removed": list(plan.removed),
            "notes": list(plan.notes),
            "bytes_read": plan.bytes_read,
            "bytes_written": plan.bytes_written,
            "bytes_linked": plan.bytes_linked,
            "executed": self.executed,
            "verified": self.verified,
            "output": self.output,
            **({"remote": asdict(self.remote)} if self.remote else {}),
        }

    def _facts(self) -> tuple[str, ...]:
        return plan_facts(self.plan.command, self.plan.checkpoint.source, self.output)

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return self.plan._rows()


def _operation(operation: Operation) -> dict[str, object]:
    return {"op": type(operation).__name__, **{key: plain(value) for key, value in asdict(operation).items()}}
