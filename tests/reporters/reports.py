"""Reports to render: one from real inspections, one of every case, and arbitrary ones."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

import tieconv as api
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, CheckReport, Failure, Fix, Waiver
from tieconv.checks.registry import RULES

BAITS = (
    "]]>",
    "::error::x",
    "  ::stop-commands::x",
    "##[error]x",
    "##vso[task.complete]",
    "%0A::error::x",
    "\r\n",
    "\n\n# x",
    "|",
    "\\|",
    "`",
    "``",
    "`|`",
    "\\",
    "<script>alert(1)</script>",
    "<!--",
    "-->",
    "</details>",
    "</code>",
    "&lt;b&gt;",
    "&#60;b>",
    "[x](http://evil.example)",
    "![x](y)",
    "[x]: y",
    "http://evil.example",
    "www.evil.example",
    "@octocat",
    "a@b.example",
    "GH-1",
    "#1",
    "\x1b[31m",
    "\x00",
    "\x85",
    "\u2028",
    "\u202e",
    "\u200b",
    "\ufffe",
    "\ud800",
    "\udcff",
    "}{0}",
    "--",
    "---",
    "1. x",
    "* x",
    "~~x~~",
    "$x$",
    "$(id)",
    "'\"",
    "..",
    "/",
    "//x",
    "hf://",
    "C:\\x",
    "%",
    "?",
    "#",
)
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
models = st.one_of(
    st.builds(
        CheckedModel, texts, st.lists(findings, max_size=4).map(tuple), st.none(), fixes, st.none() | texts.filter(bool)
    ),
    st.builds(CheckedModel, texts, st.just(()), st.builds(Failure, texts, texts)),
)
reports = st.builds(
    CheckReport,
    st.lists(models, max_size=3).map(tuple),
    st.sampled_from(Level),
    st.lists(texts, max_size=1).map(tuple),
    st.lists(texts, max_size=1).map(tuple),
)


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
    return CheckReport(
        (
            CheckedModel("models/clean"),
            CheckedModel("models/mild", (mild, note)),
            CheckedModel("models/bad", (entry(), unsafe, mild, waived)),
            CheckedModel("models/waived", (waived,)),
            CheckedModel("hf://org/remote@v1", (entry(),)),
            CheckedModel(
                "models/torn", (), Failure("models/torn/model.safetensors: the header is cut off", "fetch it")
            ),
        ),
        Level.ERROR,
    )


def stored(*sources: Path, fail_on: Level = Level.ERROR) -> CheckReport:
    """What the rules say about models on disk."""
    checked = []
    for source in sources:
        inspection = api.inspect(str(source))
        entries = (CheckedFinding(finding, "model.safetensors") for finding in inspection.findings)
        checked.append(CheckedModel(str(source), tuple(entries)))
    return CheckReport(tuple(checked), fail_on)
