"""Analyses to render: one with every plot, and arbitrary ones."""

from __future__ import annotations

import random
from math import inf, nan

from hypothesis import strategies as st

from tests.reporters.reports import BAITS
from tieconv.checkpoint.results.analysis import Analysis, Measure, Section

NAMES = (
    "plane_x",
    "plane_y",
    "plane_colour log p",
    "plane_colour row norm",
    "bias",
    "log_p",
    "bias_at_log_p",
    "implicit_bias_at_log_p",
    "row_difference",
    "embed_norm",
    "head_norm",
    "tied_norm",
    "under_trained_score",
    "loss tied",
    "something new",
)
MEASURES = ("knn E→T", "knn U→T", "rsa U→T", "norms E→T", "cka E→U", "KL")


def full() -> Analysis:
    """Every plot, in lengths as large models give them."""
    chance = random.Random(0)

    def noise(count: int, scale: float = 1.0) -> tuple[float, ...]:
        return tuple(chance.gauss(0, scale) for _ in range(count))

    norms = {f"{name}_norm": tuple(1 + abs(x) for x in noise(4096, 0.1)) for name in ("tied", "embed", "head")}
    measures = tuple(
        Measure(f"{name} {pair}", 0.1 + 0.4 * (pair == "U→T"), 0.05, 0.7, 1000, "share", "what it means")
        for name in ("knn", "rsa", "norms", "procrustes", "least squares", "cka", "identity")
        for pair in ("E→U", "E→T", "U→T", "E→E'", "U→U'")
    )
    plane = {"plane_x": noise(4096), "plane_y": noise(4096), "plane_colour log p": noise(4096, 3.0)}
    plane |= {f"plane_colour difference {kind}": noise(4096) for kind in "ab"}
    apart = (*([0.0] * 4000), *(abs(x) for x in noise(96)))
    log_p = noise(4096, 3.0)
    follows = {f"{name}_at_log_p": tuple(x / 9 for x in log_p) for name in ("bias", "implicit_bias")}
    return Analysis(
        "/models/" + "long-directory-name-" * 6,
        (
            Section("alignment", "The tied table is output-shaped.", measures, norms),
            Section("map", "The plane shows 40% of how rows differ.", (), plane),
            Section("relation", "The tables are independent.", (), {"row_difference": apart}),
            Section("bias", "The bias is word frequency.", (), {"bias": noise(4096), "log_p": log_p} | follows),
            Section("rows", "12 tokens look untrained.", (), {"under_trained_score": tuple(sorted(noise(4096)))}),
            Section("training", "Good.", (), {"loss tied": noise(200), "other": noise(9)}),
        ),
        "independent",
        "No: the tables were trained apart; keep both.",
    )


_numbers = st.one_of(
    st.floats(), st.sampled_from([0.0, -0.0, nan, inf, -inf, 5e-324, 1.7e308, -1.7e308, 1.0, 1.0 + 2**-52])
)
_texts = st.one_of(st.sampled_from(BAITS), st.text(max_size=30), st.builds("a {} b".format, st.sampled_from(BAITS)))
_measures = st.builds(
    Measure,
    st.one_of(st.sampled_from(MEASURES), _texts),
    st.none() | _numbers,
    st.none() | _numbers,
    st.none() | _numbers,
    st.none() | st.integers(0, 10**9),
    _texts,
    _texts,
)
_series = st.dictionaries(
    st.one_of(st.sampled_from(NAMES), _texts),
    st.one_of(st.lists(_numbers, max_size=12), st.lists(_numbers, min_size=5, max_size=5)).map(tuple),
    max_size=8,
)
_sections = st.builds(Section, _texts, _texts, st.lists(_measures, max_size=5).map(tuple), _series)
analyses = st.builds(Analysis, _texts, st.lists(_sections, max_size=4).map(tuple), _texts, _texts)
