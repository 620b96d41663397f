"""No perturbed model does more than its certificate allows, whatever the hidden state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.analysis.constructed import Rng, embedding, table
from tieconv.analysis.retie_cost import Bound, Change, bound, enclosing_ball, zero_mass
from tieconv.analysis.subject import Final

Array = npt.NDArray[Any]
QUICK, FULL = 40, 600


@dataclass(frozen=True)
class Trial:
    """The bound and the largest change that was found."""

    bound: Bound
    kl: float
    log_p: float


def _noise(u: Array, size: float, rng: Rng) -> Array:
    return u + size * u.std() * rng.standard_normal(u.shape)


def _near_gauge(u: Array, size: float, rng: Rng) -> Array:
    return u + rng.standard_normal(u.shape[1]) + 1e-3 * size * rng.standard_normal(u.shape)


def _few_rows(u: Array, size: float, rng: Rng) -> Array:
    changed = u.copy()
    changed[-max(len(u) // 50, 1) :] = size * rng.standard_normal(u.shape[1])
    return changed


def _scale(u: Array, size: float, rng: Rng) -> Array:
    return u * (1 + size)


def _one_direction(u: Array, size: float, rng: Rng) -> Array:
    return u + size * u.std() * rng.standard_normal((len(u), 1)) * rng.standard_normal(u.shape[1])


PERTURBATIONS: tuple[Callable[[Array, float, Rng], Array], ...] = (
    _noise,
    _near_gauge,
    _few_rows,
    _scale,
    _one_direction,
)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def trial(seed: int) -> Trial:
    """One random head, norm and perturbation; the worst of random and of adversarial hidden states."""
    rng = np.random.default_rng([seed, 99])
    width, rows = int(rng.integers(4, 40)), int(rng.integers(40, 300))
    u = embedding(rng, rows, width)
    u *= rng.uniform(0.5, 10) / u.std()
    e = PERTURBATIONS[seed % len(PERTURBATIONS)](u, 10 ** rng.uniform(-4, 0), rng)
    shift = rng.standard_normal(width) * rng.uniform(0, 1) if rng.random() < 0.5 else None
    cap = 20.0 if rng.random() < 0.3 else 0.0
    final = Final(np.exp(rng.normal(0, 0.5, width)), shift, float(np.exp(rng.normal(0, 0.5))), cap, "", "")
    head, embed = table(u, "F32"), table(e, "F32")
    return Trial(bound(Change(embed, head, final)), *_worst(head.values(0, rows), embed.values(0, rows), final, rng))


def _worst(u: Array, e: Array, final: Final, rng: Rng) -> tuple[float, float]:
    """The largest KL and change of a log-probability over hidden states of the norm's length."""
    seen = (e - u) * final.gains
    far = seen[np.linalg.norm(seen - seen.mean(0), axis=1).argsort()[-6:]]
    states = np.concatenate(
        [rng.standard_normal((64, u.shape[1])), far, -far, (far[:, None] - far[None]).reshape(-1, u.shape[1])]
    )
    lengths = np.linalg.norm(states, axis=1)
    states = states[lengths > 0] / lengths[lengths > 0][:, None] * np.sqrt(u.shape[1])
    hidden = final.scale * (states * final.gains + (0 if final.shift is None else final.shift))
    before, after = (log_softmax(_capped(hidden @ head.T, final.cap)) for head in (u, e))
    kl = (np.exp(before) * (before - after)).sum(1)
    return float(kl.max()), float(np.abs(before - after).max())


def _capped(logits: Array, cap: float) -> Array:
    return cap * np.tanh(logits / cap) if cap else logits


def check(trials: int) -> list[Trial]:
    found = [trial(seed) for seed in range(trials)]
    for seed, case in enumerate(found):
        # Log-probabilities of float64 are themselves only good to some 1e-12.
        assert case.kl <= case.bound.kl + 1e-11, seed
        assert case.log_p <= case.bound.log_p + 1e-10, seed
    return found


def test_no_bound_is_violated() -> None:
    """Over the quick sample, with soft caps, shifts and multipliers; and the bound is not idle: it is nearly met."""
    found = check(QUICK)
    assert max(case.log_p / case.bound.log_p for case in found if case.bound.log_p > 1e-6) > 0.5


@pytest.mark.slow
def test_no_bound_is_violated_at_full_length() -> None:
    """Over 600 perturbed heads."""
    found = check(FULL)
    assert max(case.log_p / case.bound.log_p for case in found if case.bound.log_p > 1e-6) > 0.9


@pytest.mark.parametrize(
    ("shift", "scale", "cap"), [(0.0, 1.0, 0.0), (0.0, 3.0, 0.0), (2.0, 1.0, 0.0), (2.0, 1.0, 1e4)]
)
def test_the_bound_of_the_divergence_is_met(shift: float, scale: float, cap: float) -> None:
    """Two equal rows that move apart: no smaller bound holds."""
    embed, head = np.array([[0.01, 0, 0, 0], [-0.01, 0, 0, 0]]), np.zeros((2, 4))
    final = Final(np.ones(4), np.array([shift, 0, 0, 0]), scale, cap, "", "")
    found = bound(Change(table(embed, "F64"), table(head, "F64"), final))
    kl, _ = _worst(head, embed, final, np.random.default_rng(0))
    assert 0.99 < kl / found.kl < 1
    assert found.estimate == pytest.approx((scale * 0.01) ** 2 / 2)


def test_the_gauge_costs_nothing() -> None:
    """One vector added to every row is bounded by rounding, though cosine and distance are far off."""
    rng = np.random.default_rng(0)
    u = embedding(rng, 300, 16)
    final = Final(np.ones(16), None, 1.0, 0.0, "", "")
    shifted = table(u + rng.standard_normal(16) * 10 * u.std(), "F64")
    assert bound(Change(shifted, table(u, "F64"), final)).kl < 1e-20


def test_a_cap_ends_the_gauge() -> None:
    """Under a soft cap the same vector is bounded by its length, since it does change the probabilities."""
    rng = np.random.default_rng(0)
    u = embedding(rng, 300, 16)
    final = Final(np.ones(16), None, 1.0, 30.0, "", "")
    shifted = table(u + rng.standard_normal(16) * 10 * u.std(), "F64")
    assert bound(Change(shifted, table(u, "F64"), final)).kl > 1e-3


def test_the_estimate_is_right_for_rounding() -> None:
    """Rounding the head to bfloat16 moves the mean KL by the estimate, to a factor of 1.5."""
    rng = np.random.default_rng(1)
    u = rng.standard_normal((2000, 64)) * 0.05
    head, rounded = table(u, "F32"), table(u, "BF16")
    final = Final(np.ones(64), None, 1.0, 0.0, "", "")
    found = bound(Change(rounded, head, final))
    states = rng.standard_normal((500, 64))
    states *= 8 / np.linalg.norm(states, axis=1, keepdims=True)
    before, after = (log_softmax(states @ part.values(0, 2000).T) for part in (head, rounded))
    measured = float((np.exp(before) * (before - after)).sum(1).mean())
    assert measured / 1.5 < found.estimate < measured * 1.5
    assert measured < found.kl


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_what_is_not_finite_is_not_bounded(bad: float, cap: float) -> None:
    """One NaN or infinity anywhere, and nothing is certified."""
    values = np.random.default_rng(4).standard_normal((200, 8))
    broken = values.copy()
    broken[150, 3] = bad
    for shift in (None, np.ones(8)):
        final = Final(np.ones(8), shift, 1.0, cap, "", "")
        found = bound(Change(table(broken, "F32"), table(values, "F32"), final))
        assert found.kl == found.log_p == np.inf


def test_every_row_is_in_the_ball() -> None:
    """No row lies outside, and the ball is no larger than the one around the mean."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        rows = rng.standard_normal((500, 8)) ** 3
        centre, radius = enclosing_ball(lambda rows=rows: iter((rows[:200], rows[200:])), 8)  # type: ignore[misc]
        assert np.linalg.norm(rows - centre, axis=1).max() <= radius
        assert radius <= np.linalg.norm(rows - rows.mean(0), axis=1).max() * (1 + 1e-8)


def test_rows_of_zeros_take_the_share_of_their_logit() -> None:
    """Where every logit is 0 the zero rows take their share of the rows; where others are high they take less."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((400, 16)) * 1e-6
    zero = np.zeros(400, bool)
    zero[-40:] = True
    values[zero] = 0
    final = Final(np.ones(16), None, 1.0, 0.0, "", "")
    assert zero_mass(table(values, "F32"), final, None, zero)[0] == pytest.approx(0.1, abs=1e-3)
    assert zero_mass(table(values * 1e6, "F32"), final, None, zero)[0] < 0.05
