"""The type of a consumer: one loader with a range of its versions."""

from __future__ import annotations

from collections.abc import Callable

from tieconv.checkpoint.finding import Outcome, Prediction
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record
from tieconv.loaders import release_tables
from tieconv.loaders.basis import basis
from tieconv.loaders.evidence.table_rows import wrong_rows
from tieconv.loaders.evidence.unclear import unmeasured
from tieconv.loaders.loaded import Loaded, stopped
from tieconv.loaders.outcome import Verdict, verdict

Version = tuple[int, ...]
_OF_TRANSFORMERS = frozenset({"transformers", "safetensors"})
"""Loaders that fill the class that transformers builds, and so were measured with it."""


@record
class Consumer:
    """A loader that behaves alike from version ``since`` to below ``before`` (``None``: up to the newest).

    ``load`` is pure. ``cited`` is its source. ``ran`` are the releases that the tests ran for it, ``every`` those of
    the loader. ``asked`` is the release that the user named, if any. ``own_rows`` says that ``load`` compares the rows
    of the tables with the config, because it drops some tables.
    """

    name: str
    version: str
    since: Version
    before: Version | None
    cited: str
    load: Callable[[Inspection], Loaded]
    own_rows: bool = False
    ran: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    asked: Version | None = None

    def predict(self, inspection: Inspection) -> Prediction:
        """Return what this loader does with the model."""
        loaded = self.load(inspection)
        if inspection.family.since and not loaded.refusals and self.name not in _OF_TRANSFORMERS:
            loaded = stopped(loaded.loader, unmeasured(inspection, self.name))
        rows = None if loaded.refusals or self.own_rows else wrong_rows(inspection)
        if rows is not None:
            loaded = stopped(loaded.loader, rows)
        reads = self.name == "mlx-lm" or not inspection.family.mlx_names
        quantised = self._of_quantised(inspection, loaded) if reads else None
        answer = quantised or verdict(inspection, loaded)
        since = inspection.family.since if self.name == "transformers" else ""
        ran = (since,) if since and answer.outcome is not Outcome.ERROR else self.ran
        rests_on = basis(ran, (*(self.every or self.ran), *ran), self.asked)
        run = release_tables.names("transformers-5", "quantised") if quantised is not None and self.ran else ()
        if run and inspection.family.architecture not in run:
            rests_on += f" with {min(run)}, not with this class"
        return Prediction(
            name=self.name,
            version=self.version,
            outcome=answer.outcome,
            detail=answer.detail,
            measured=bool(self.ran),
            basis=rests_on,
            cited=self.cited,
            tensors=answer.tensors,
            dropped=answer.dropped,
        )

    def _of_quantised(self, inspection: Inspection, loaded: Loaded) -> Verdict | None:
        """Return the answer about quantised tables, ``None`` if the model has none and its config describes none."""
        described = inspection.checkpoint.format in ("safetensors", "torch") and inspection.quantisation is not None
        if inspection.quantised_tables is None and not described:
            return None
        from tieconv.loaders.quantised_answer import quantised_answer  # most models are not quantised

        return quantised_answer(inspection, (self.name, self.version), loaded)
