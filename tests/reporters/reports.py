"""Reports and analyses to render: of real inspections, of every case, with every plot, and arbitrary ones."""

from __future__ import annotations

import random
from math import inf, nan
from pathlib import Path

from hypothesis import strategies as st

import tieconv as api
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.results.analysis import Analysis, Measure, Section
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport, Failure, Fix, Waiver
from tieconv.checks.registry import RULES

BAITS = (
    "]]>", "::error::x", "  ::stop-commands::x", "##[error]x", "##vso[task.complete]", "%0A::error::x", "\r\n",
    "\n\n# x", "|", "\\|", "`", "``", "`|`", "\\", "<script>alert(1)</script>", "<!--", "-->", "</details>", "</code>",
    "&lt;b&gt;", "&#60;b>", "[x](http://evil.example)", "![x](y)", "[x]: y", "http://evil.example", "www.evil.example",
    "@octocat", "a@b.example", "GH-1", "#1", "\x1b[31m", "\x00", "\x85", "\u2028", "\u202e", "\u200b", "\ufffe",
    "\ud800", "\udcff", "}{0}", "--", "---", "1. x", "* x", "~~x~~", "$x$", "$(id)", "'\"", "..", "/", "//x", "hf://",
    "C:\\x", "%", "?", "#",
)  # fmt: skip
"""What each format would take for a part of itself."""

_bytes = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_any = st.text(st.characters(exclude_categories=()), max_size=12)
texts = st.lists(st.one_of(st.sampled_from(BAITS), _any, _bytes), max_size=4).map(
    lambda parts: "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)
"""Any text that a file could bring, lone surrogates and control characters with it."""

findings = st.builds(
    CheckedFinding,
    st.builds(
        Finding,
        st.one_of(st.sampled_from([rule.code for rule in RULES]), texts),
        st.sampled_from(Level),
        texts,
        st.lists(texts, max_size=3).map(tuple),
        st.none() | st.builds(Remedy, texts, st.booleans()),
    ),
    texts,
    st.none() | st.builds(Waiver, st.sampled_from(["ignore", "model", "baseline"]), texts),
)
fixes = st.lists(st.builds(Fix, texts, st.lists(texts, max_size=1).map(tuple), texts), max_size=1).map(tuple)
_found = st.lists(findings, max_size=4).map(tuple)
_checked = st.builds(CheckedModel, texts, _found, st.none(), fixes, st.none() | texts.filter(bool))
models = _checked | st.builds(CheckedModel, texts, st.just(()), st.builds(Failure, texts, texts))
_notes = st.lists(texts, max_size=1).map(tuple)
reports = st.builds(CheckReport, st.lists(models, max_size=3).map(tuple), st.sampled_from(Level), _notes, _notes)


def entry(rule: str = "TIE001", level: Level = Level.ERROR, **given: object) -> CheckedFinding:
    """A finding with what a test does not care about filled in."""
    values = {"message": "lm_head.weight differs from model.embed_tokens.weight", "tensors": ("lm_head.weight",)}
    remedy = Remedy("tieconv set-tie false models/a -o OUT", True)
    values |= {"remedy": remedy} | {name: value for name, value in given.items() if name not in ("file", "waiver")}
    finding = Finding(rule, level, **values)
    return CheckedFinding(finding, given.get("file", "model.safetensors"), given.get("waiver"))


def every_case() -> CheckReport:
    """A failed model, one with a mild finding, one with a waived one, a clean one and one that cannot be read."""
    mild = entry("TIE002", Level.WARNING, message="lm_head.weight is a byte-identical copy of the embedding")
    note = entry("STO001", Level.NOTE, file="", remedy=None, message="2 tensors hold the same bytes")
    unsafe = entry("TIE008", file="config.json", remedy=Remedy("tieconv set-tie auto models/bad -o OUT", False))
    waived = entry("VOC001", waiver=Waiver("baseline", "known since 2024-05"))
    failure = Failure("models/torn/model.safetensors: the header is cut off", "fetch it")
    models = (
        CheckedModel("models/clean"),
        CheckedModel("models/mild", (mild, note)),
        CheckedModel("models/bad", (entry(), unsafe, mild, waived)),
        CheckedModel("models/waived", (waived,)),
        CheckedModel("hf://org/remote@v1", (entry(),)),
        CheckedModel("models/torn", (), failure),
    )
    return CheckReport(models, Level.ERROR)


def stored(*sources: Path, fail_on: Level = Level.ERROR) -> CheckReport:
    """What the rules say about models on disk."""
    checked = []
    for source in sources:
        inspection = api.inspect(str(source))
        entries = (CheckedFinding(finding, "model.safetensors") for finding in inspection.findings)
        checked.append(CheckedModel(str(source), tuple(entries)))
    return CheckReport(tuple(checked), fail_on)


SERIES = (
    ("plane_x", "plane_y", "plane_colour log p", "plane_colour row norm"),
    ("log_p", "bias_at_log_p", "implicit_bias_at_log_p"),
    *((name,) for name in (
        "bias", "row_difference", "embed_norm", "head_norm", "tied_norm", "under_trained_score", "loss tied",
    )),
)  # fmt: skip
"""Names of series; those in one tuple are of one length."""
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
            Section("training", "Good.", (), {"loss tied": noise(200)}),
        ),
        "independent",
        "No: the tables were trained apart; keep both.",
    )


_numbers = st.one_of(
    st.floats(), st.sampled_from([0.0, -0.0, nan, inf, -inf, 5e-324, 1.7e308, -1.7e308, 1.0, 1.0 + 2**-52])
)
_texts = st.one_of(st.sampled_from(BAITS), st.text(max_size=30), st.builds("a {} b".format, st.sampled_from(BAITS)))
_figures = [st.none() | _numbers] * 3, st.none() | st.integers(0, 10**9)
_measures = st.builds(Measure, st.sampled_from(MEASURES) | _texts, *_figures[0], _figures[1], _texts, _texts)


@st.composite
def _series(draw: st.DrawFn) -> dict[str, tuple[float, ...]]:
    every: dict[str, tuple[float, ...]] = {}
    for names in draw(st.lists(st.sampled_from(SERIES), max_size=4)):
        count = draw(st.integers(0, 12))
        every |= {name: draw(st.tuples(*[_numbers] * count)) for name in names}
    return every


_sections = st.builds(Section, _texts, _texts, st.lists(_measures, max_size=5).map(tuple), _series())
analyses = st.builds(Analysis, _texts, st.lists(_sections, max_size=4).map(tuple), _texts, _texts)
