"""Errors of logits against the torch reference: for one batch, and pooled under ``metrics``."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record


@record
class Figures:
    """Errors of logits against the reference over ``positions`` tokens, without padding.

    ``rms`` and ``max_abs`` are of the difference, in logits. ``relative_rms`` is ``rms`` over that of the reference
    without its mean. ``flips`` are positions with another top-1 token. ``flip_margin`` is the largest gap in the
    reference between its own top-1 token and the graph's. ``kl`` is the mean KL divergence in nats.
    """

    positions: int
    rms: float
    relative_rms: float
    max_abs: float
    flips: int
    flip_margin: float
    kl: float

    @property
    def top1(self) -> float:
        """The share of positions with the reference's top-1 token."""
        return 1 - self.flips / self.positions if self.positions else 0.0


@record
class Precision:
    """What computed the logits that the graph is compared with."""

    dtype: str
    library: str = "torch"
    device: str = "cpu"

    def to_dict(self) -> dict[str, object]:
        """Return one of ``reference`` and ``floor``."""
        return {"library": self.library, "device": self.device, "dtype": self.dtype}


@record
class Pooled:
    """The errors over many batches: the graph's, the floor's, and how they compare."""

    ratio: float
    max_ratio: float
    graph: Figures
    floor: Figures

    def to_dict(self) -> dict[str, object]:
        """Return one of ``logits`` and ``steps``."""
        sides = {"graph": _pooled_figures(self.graph), "floor": _pooled_figures(self.floor)}
        return {"ratio": self.ratio, "max_ratio": self.max_ratio, **sides}


@record
class Pools:
    """The single passes and the cached steps; ``None`` if the graph has none of them."""

    logits: Pooled | None
    steps: Pooled | None

    def to_dict(self) -> dict[str, object]:
        """Return both pools by their keys of ``metrics``."""
        return {
            "logits": None if self.logits is None else self.logits.to_dict(),
            "steps": None if self.steps is None else self.steps.to_dict(),
        }


@record
class FreeRun:
    """How far greedy runs of the graph agree with those of the reference: ``sequences`` runs of ``steps`` tokens.

    ``identical`` is the share of runs that agree to the end. ``mean_steps_before_change`` is the average number of
    tokens that agree before the first that differs.
    """

    sequences: int
    steps: int
    identical: float
    mean_steps_before_change: float


@record
class Vocabulary:
    """The ids that went through the graph's lookup of words.

    ``wrong`` are those that get another row than the checkpoint's. ``special`` are those that later nodes treat
    differently. ``whole`` is how many ids went through the whole graph.
    """

    ids: int
    wrong: tuple[int, ...] = ()
    special: tuple[int, ...] = ()
    whole: int = 0


@record
class Metrics:
    """Which precisions and seeds were measured, and the pooled errors; ``tf32`` are those with TF32 allowed.

    ``vocabulary`` is ``None`` if no direct lookup of words is visible in the graph.
    """

    reference: Precision
    floor: Precision
    seeds: tuple[int, ...]
    pools: Pools
    tf32: Pools | None = None
    free_run: FreeRun | None = None
    vocabulary: Vocabulary | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``metrics``."""
        return {
            "reference": self.reference.to_dict(),
            "floor": self.floor.to_dict(),
            "seeds": self.seeds,
            **self.pools.to_dict(),
            "tf32": None if self.tf32 is None else self.tf32.to_dict(),
            "free_run": self.free_run,
            "vocabulary": self.vocabulary,
        }


def _pooled_figures(figures: Figures) -> dict[str, object]:
    return {
        "relative_rms": figures.relative_rms,
        "max_abs": figures.max_abs,
        "kl": figures.kl,
        "top1": figures.top1,
        "flips": figures.flips,
        "n": figures.positions,
    }
