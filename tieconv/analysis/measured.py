"""What the model does on a text: the cost of each survivor and of stripping the bias, and where the prior lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from tieconv.analysis.reference import Reference
from tieconv.analysis.tables import Array
from tieconv.checkpoint.analysis import Measure

SURVIVORS = ("embed", "head", "mean")

DISTINCT = 100
"""Different tokens below which no line is fitted through their frequencies."""


@dataclass(slots=True)
class Effect:
    """Window means of what a change does: KL(p ‖ p') in nats, top-1 agreement, change of the loss in nats."""

    kl: list[float] = field(default_factory=list)
    top1: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    def add(self, before: Any, after: Any, target: Any) -> None:
        self.kl.append(float((before.exp() * (before - after)).sum(-1).mean()))
        self.top1.append(float((before.argmax(-1) == after.argmax(-1)).float().mean()))
        change = before.gather(-1, target[:, None]) - after.gather(-1, target[:, None])
        self.loss.append(float(change.mean()))

    @property
    def error(self) -> float:
        """Standard error of the mean KL: windows are drawn, tokens within one hang together."""
        return float(np.std(self.kl, ddof=1) / sqrt(len(self.kl))) if len(self.kl) > 1 else float("inf")

    @property
    def worst(self) -> float:
        """The mean KL and two standard errors."""
        return float(np.mean(self.kl)) + 2 * self.error

    def measures(self, name: str, predicted: int) -> tuple[Measure, ...]:
        """Means over the windows; the standard error is that of the window means."""
        says = f"± {self.error:.1g} over {len(self.kl)} windows"
        return (
            Measure(f"KL measured, {name}", float(np.mean(self.kl)), n=predicted, unit="nats/token", says=says),
            Measure(f"top-1 agreement, {name}", float(np.mean(self.top1)), ceiling=1.0, n=predicted),
            Measure(f"change of the loss, {name}", float(np.mean(self.loss)), n=predicted, unit="nats/token"),
        )


@dataclass(frozen=True, slots=True)
class OnText:
    """``effects`` of each change by name; ``zero_mass`` is the probability of the zero rows, ``hidden`` the mean of
    what the head is applied to (d,), ``counts`` how often each token stands in the text (V,).
    """

    effects: dict[str, Effect]
    zero_mass: float
    hidden: Array
    counts: Array
    predicted: int

    @property
    def retie(self) -> tuple[Measure, ...]:
        """The figures of each survivor."""
        names = (f"{survivor} survives" for survivor in SURVIVORS)
        return tuple(m for name in names if name in self.effects for m in self._measures(name))

    @property
    def bias(self) -> tuple[Measure, ...]:
        """The figures of a model without its bias; none where it has none."""
        return self._measures("bias stripped") if "bias stripped" in self.effects else ()

    def _measures(self, name: str) -> tuple[Measure, ...]:
        return self.effects[name].measures(name, self.predicted)


def on_text(reference: Reference, zero: Array, *, apart: bool) -> OnText:
    """Run the text through the model as it is and as each change would leave it.

    ``zero`` marks the rows of zeros (V,); ``apart`` says whether the two tables differ.
    """
    torch = reference.torch
    changes = {f"{name} survives": swap for name, swap in _swaps(reference).items()} if apart else {}
    if _bias(reference) is not None:
        changes["bias stripped"] = lambda: _without_bias(reference)
    effects = {name: Effect() for name in changes}
    marked = torch.from_numpy(np.flatnonzero(zero))
    mass: list[float] = []
    hidden: list[Any] = []
    with torch.no_grad(), _listening(reference, hidden):
        for window in reference.windows:
            before = reference.log_probabilities(window)
            hidden[-1] = hidden[-1].mean(0)
            mass.append(float(before[:, marked].exp().sum(-1).mean()))
            for name, change in changes.items():
                with change():
                    effects[name].add(before, reference.log_probabilities(window), window[1:])
                hidden.pop()
    counts = torch.bincount(reference.windows.reshape(-1), minlength=len(zero)).numpy()
    mean = torch.stack(hidden).mean(0).numpy().astype("f8")
    return OnText(effects, float(np.mean(mass)), mean, counts, reference.predicted)


def _swaps(reference: Reference) -> dict[str, Callable[[], Any]]:
    torch, embed, head = reference.torch, reference.embed, reference.head
    if embed.shape != head.shape:
        return {}
    tables = {"embed": embed, "head": head, "mean": torch.nn.Parameter((embed + head) / 2, requires_grad=False)}
    return {name: lambda table=table: reference.tables(table, table) for name, table in tables.items()}  # type: ignore[misc]


def _bias(reference: Reference) -> Any:
    return getattr(reference.model.get_output_embeddings(), "bias", None)


@contextmanager
def _without_bias(reference: Reference) -> Iterator[None]:
    module = reference.model.get_output_embeddings()
    kept, module.bias = module.bias, None
    try:
        yield
    finally:
        module.bias = kept


@contextmanager
def _listening(reference: Reference, heard: list[Any]) -> Iterator[None]:
    """Whatever the head is applied to, (tokens, d), is appended to ``heard``."""
    module = reference.model.get_output_embeddings()
    hook = module.register_forward_pre_hook(lambda _, given: heard.append(given[0].reshape(-1, given[0].shape[-1])))
    try:
        yield
    finally:
        hook.remove()


def on_frequency(name: str, values: Array, counts: Array) -> tuple[Measure, ...]:
    """The line values ≈ a·log p + k over the tokens of the text: slope, R² and its floor."""
    seen = np.flatnonzero(counts)
    if len(seen) < DISTINCT:
        says = f"the text has {len(seen)} different tokens; a line needs {DISTINCT}"
        return (Measure(f"R², {name} from log p", None, n=len(seen), says=says),)
    log_p = np.log(counts[seen] / counts.sum())
    slope, _ = np.polyfit(log_p, values[seen], 1)
    r2 = float(np.corrcoef(log_p, values[seen])[0, 1] ** 2) if np.ptp(values[seen]) else 0.0
    says = "p is the frequency in the text: rare tokens are counted badly, which lowers R²"
    return (
        Measure(f"slope, {name} on log p", float(slope), n=len(seen)),
        Measure(f"R², {name} from log p", r2, floor=1 / (len(seen) - 1), ceiling=1.0, n=len(seen), says=says),
    )
