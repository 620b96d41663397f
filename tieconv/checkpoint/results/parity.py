"""The agreement of a graph with the torch reference: evidence that serialises to `tieconv.parity/1`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from enum import StrEnum
from typing import Any

from tieconv.checkpoint.value_type import Listed, Printed, quoted, record, values_of
from tieconv.text import count
from tieconv.version import VERSION


class Verdict(StrEnum):
    """The answer; `not_run` is never `passed`."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


@record
class ProviderUse:
    """Where the graph ran. ``fallback_nodes`` are heavy nodes on the CPU although another provider was requested.

    ``placement`` counts the nodes of each provider, ``fallback`` lists the names of such nodes. ``tf32`` is whether
    float32 products may be rounded to TF32.
    """

    requested: str
    active: str = ""
    fallback_nodes: int = 0
    placement: Mapping[str, int] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    tf32: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@record
class Lost:
    """A checkpoint tensor missing from the graph (or a graph weight that no tensor explains), and why."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    required: bool
    reason: str


@record
class Identity:
    """Which checkpoint tensors the graph holds bit for bit, cast to its precision.

    ``how`` counts the tensors in the graph by form (``straight``, ``transposed`` …). ``unused`` are stored tensors that
    the model's class does not read. ``copies`` is how many initializers hold the word embedding.
    """

    tensors: int
    found: int
    bytes: int
    bytes_found: int
    how: Mapping[str, int]
    lost: tuple[Lost, ...]
    unexplained: tuple[Lost, ...]
    unused: tuple[str, ...]
    copies: int

    @property
    def proved(self) -> bool:
        """Whether every required tensor is in the graph, and every matrix of the graph is in the checkpoint."""
        return not any(entry.required for entry in (*self.lost, *self.unexplained))


@record
class Structure:
    """The inputs and outputs of the graph; ``faults`` are sentences that each fail the verdict."""

    kind: str
    precision: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()


@record
class Case:
    """One batch: its shape and seed, the graph's errors, the floor's, and how they compare.

    ``ratio`` is the graph's RMS error over the floor's, ``max_ratio`` the same for the largest error. Without figures,
    no position is judged. ``error`` is the runtime's message if the graph does not run at this shape.
    """

    group: str
    batch: int
    sequence: int
    past: int
    padding: int
    seed: int
    graph: Figures | None
    floor: Figures | None
    ratio: float | None
    max_ratio: float | None
    error: str = ""


@record
class Gate:
    """One condition of the verdict: ``value`` must not exceed ``limit``. A limit that is not finite judges nothing."""

    name: str
    value: float | None
    limit: float | None
    passed: bool
    sentence: str

    @property
    def state(self) -> str:
        """``passed``, ``failed`` or ``not judged``."""
        if self.limit is not None and not math.isfinite(self.limit):
            return "not judged"
        return "passed" if self.passed else "failed"


def limited(name: str, value: float, limit: float, sentence: str) -> Gate:
    """Return the gate that passes if ``value`` is within ``limit``. Both must be finite."""
    return Gate(name, value, limit, math.isfinite(value) and math.isfinite(limit) and value <= limit, sentence)


LONGER = "longer prompts"
"""The group of `Fed.left_out` for prompts that no budget feeds."""


@record
class Fed:
    """What a measurement fed, what it left out, and how small a fault it would have seen.

    ``budget`` is in seconds of computing, ``None`` for all batches. ``tokens`` and ``rows`` are the most of one batch.
    ``left_out`` counts the batches that a larger budget feeds, by group. A fault that changes the logits of any case by
    ``change``, relative to their RMS, fails. A fault in the ``share`` of all positions, spread at random, is
    missed once in 20 times. At ``not_judged`` more positions torch's own logits are not finite. The model has
    ``longest`` positions; ``None`` if its config does not say.
    """

    budget: float | None
    cases: int
    positions: int
    tokens: int
    rows: int
    steps: int
    left_out: Mapping[str, int]
    change: float
    share: float
    not_judged: int = 0
    longest: int | None = None


@record
class Histogram:
    """|error| over the RMS of the logits, in decades: ``counts[i]`` from ``10**(start + i * width)`` on."""

    group: str
    start: float
    width: float
    graph: tuple[int, ...]
    floor: tuple[int, ...]


@record
class Parity(Printed):
    """The measured agreement of a graph with its checkpoint. ``str()`` returns the `tieconv.parity/1` JSON.

    ``reason`` is why nothing was run, or the likely fault of a graph that failed.
    """

    verdict: Verdict
    graph: str
    model: str
    provider: ProviderUse
    structure: Structure | None = None
    identity: Identity | None = None
    gates: tuple[Gate, ...] = ()
    cases: tuple[Case, ...] = ()
    metrics: Metrics | None = None
    histograms: tuple[Histogram, ...] = ()
    reason: str = ""
    hint: str = ""
    quantised: Quantised | None = None
    fed: Fed | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.parity/1`."""
        return {"schema": "tieconv.parity/1", "tieconv": VERSION, **_document(self)}

    def _facts(self) -> tuple[str, ...]:
        where = (self.provider.active,) if self.provider.active else ()
        return quoted(self.graph), str(self.verdict).replace("_", " "), *where, count(len(self.cases), "case")

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        reason = (("reason", self.reason),) if self.reason else ()
        return *reason, *((gate.state, gate.sentence) for gate in self.gates)


def _document(report: Parity) -> dict[str, object]:
    identity = report.identity
    return {
        "verdict": str(report.verdict),
        "reason": report.reason or None,
        "hint": report.hint or None,
        **values_of(report, "graph model provider structure", plain),
        "weights": None if identity is None else {"proved": identity.proved, **plain(identity)},
        **values_of(report, "gates cases", plain),
        "metrics": {} if report.metrics is None else plain(report.metrics.to_dict()),
        "histograms": plain(report.histograms),
        **({} if report.quantised is None else {"quantised": plain(report.quantised)}),
        **({} if report.fed is None else {"fed": plain(report.fed)}),
    }


def plain(value: Any) -> Any:
    """Return dataclasses as objects, tuples as arrays, infinities and NaN as null."""
    if is_dataclass(value):
        made: dict[str, Any] = {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
        return made | {"top1": value.top1} if isinstance(value, Figures) else made
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


# Errors of logits against the torch reference: for one batch, and pooled under ``metrics``.
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
        return values_of(self, "library device dtype")


@record
class Pooled:
    """The errors over many batches: the graph's, the floor's, and how they compare."""

    ratio: float
    max_ratio: float
    graph: Figures
    floor: Figures

    def to_dict(self) -> dict[str, object]:
        """Return one of ``logits`` and ``steps``."""
        figures = "relative_rms max_abs kl top1 flips n=positions"
        sides = {name: values_of(getattr(self, name), figures, plain) for name in ("graph", "floor")}
        return {**values_of(self, "ratio max_ratio", plain), **sides}


@record
class Pools(Listed):
    """The single passes and the cached steps; ``None`` if the graph has none of them."""

    logits: Pooled | None
    steps: Pooled | None


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
    vocabulary: Vocabulary | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``metrics``."""
        measured = values_of(self, "reference floor seeds")
        return {**measured, **self.pools.to_dict(), **values_of(self, "tf32 vocabulary")}


# The figures of a quantised graph, each beside those of a known-good quantiser.
@record
class QuantisedWeight:
    """A quantised matrix of the graph and the parameters of the checkpoint that it quantises.

    ``block`` elements share a scale. ``error`` is the relative RMS error of the dequantised matrix.
    ``known_good_error`` is that of round to nearest with the same scheme. ``worst_block`` is the largest ratio of the
    two over all blocks.
    """

    name: str
    parameters: tuple[str, ...]
    operator: str
    bits: int
    block: int
    symmetric: bool
    error: float
    known_good_error: float
    worst_block: float


@record
class Loss:
    """What quantisation costs against the float reference.

    ``top1`` is the share of positions with the reference's top-1 token, ``kl`` the mean KL divergence in nats.
    ``perplexity`` is ``None`` for a model that does not predict the next token.
    """

    top1: float
    kl: float
    perplexity: float | None = None


@record
class Quantised:
    """The quantised matrices, and the losses of the graph and of the known-good quantiser.

    ``reference_perplexity`` is that of the float reference on the same ``tokens`` tokens of ``text``. ``unmatched`` are
    the quantised matrices that are similar to no parameter.
    """

    weights: tuple[QuantisedWeight, ...]
    unmatched: tuple[str, ...]
    graph: Loss | None = None
    known_good: Loss | None = None
    reference_perplexity: float | None = None
    tokens: int = 0
    text: str = ""
    notes: tuple[str, ...] = ()
