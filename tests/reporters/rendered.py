"""Reports and real answers as text, pages and data, each in a file of `FOLDER`: ``python -m tests.reporters.rendered``.

The command writes the files anew. Read their difference before it is committed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.cli.run import run
from tests.conftest import ROOT
from tests.reporters.reports import entry, every_case, full
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.graph_plan import (
    ExportOptions,
    ExportOutcome,
    ExportPlan,
    GraphOutcome,
    GraphPlan,
    HeadForm,
    SessionProof,
    SessionRuns,
    SharedMatrix,
)
from tieconv.checkpoint.results import parity
from tieconv.checkpoint.results.analysis import Analysis, Evolution, Headline, Measure, RevisionFigures
from tieconv.checkpoint.results.checked import CheckedModel, CheckReport, Fix
from tieconv.checkpoint.results.fleet import Change, FleetReport, RuleCount, Since
from tieconv.checkpoint.results.push import FileChange, Push
from tieconv.reporters.ci import check_view, formats
from tieconv.reporters.html import analyze_page, fleet_page, parity_page
from tieconv.reporters.html.svg import svg_files
from tieconv.reporters.text import analyze_text, fleet_text, parity_text, plan_text
from tieconv.version import VERSION

FOLDER = Path(__file__).parent / "data" / "rendered"
ENVIRONMENT = {"COLUMNS": "120", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}


def painted(text: str, style: str) -> str:
    """Marks in place of colours."""
    return f"<{style}>{text}</{style}>"


def check_report() -> CheckReport:
    """`every_case` with settings, notes, models that were not checked, and a repaired model."""
    report = every_case()
    many = tuple(entry(message=f"number {place}", tensors=(f"t{place}",)) for place in range(12))
    fixed = CheckedModel("models/fixed", (entry(),), None, (Fix("tieconv retie", ("TIE002",), "models/out"),), "shards")
    models = (*report.models, fixed, CheckedModel("models/many", many, below=("a", "b/c")))
    return replace(report, models=models, settings="tieconv.toml", notes=("the baseline has 2 entries more",))


def fleet_report() -> FleetReport:
    """A run that is compared with an earlier one."""
    states, message = ("new", "fixed", "still"), "lm_head.weight differs"
    changes = tuple(Change(state, f"models/{state}", "TIE001", "error", message) for state in states)
    rules = (RuleCount("TIE001", "error", 3, 1), RuleCount("TIE002", "warning", 1, 0))
    since = Since("runs/before", 4, changes, 2, 1)
    return FleetReport("runs/now", check_report(), 5, 123_456_789, 1_790_000_000.0, rules, since)


def small_analysis() -> Analysis:
    """`full` with as many points as a page can show whole."""
    analysis = full()
    sections = tuple(
        replace(section, series={name: values[:40] for name, values in section.series.items()})
        for section in analysis.sections
    )
    return replace(analysis, sections=sections)


def evolution() -> Evolution:
    """Three revisions, one without a step."""
    revisions = []
    for number, step in enumerate((100, 250, None)):
        measures = tuple(
            Measure(name, 0.9 - 0.2 * number, 0.1, None, 30, "cosine", f"what {name} says")
            for name in ("cosine E to first", "cosine U to first", "norm of E", "something new")
        )
        revisions.append(
            RevisionFigures(f"r{number}", f"m/r{number}", step, "tied", {"E": f"table {number}"}, measures)
        )
    return Evolution("m", Headline("Does the table move?", "Yes.", "It moved in 3 revisions."), tuple(revisions))


def _figures(scale: float, flips: int = 0) -> parity.Figures:
    return parity.Figures(40, 3e-6 * scale, 1e-6 * scale, 8e-6 * scale, flips, 0.02 * flips, 4e-9 * scale)


def parity_report(verdict: parity.Verdict) -> parity.Parity:
    """A report with every part that its verdict allows."""
    failed, overflows = verdict is parity.Verdict.FAILED, verdict is parity.Verdict.NOT_RUN
    groups = ("one token", "no past", "past", "left padding", "cached steps", "every token")
    cases = [
        parity.Case(group, 1 + at % 3, 1 + 4 * at, 7 * (at % 2), 2 * (at == 3), seed, _figures(1 + at + seed, at % 2),
                    _figures(2.0), 0.5 * (1 + at + seed), 0.4 * at)
        for at, group in enumerate(groups)
        for seed in range(2)
    ]  # fmt: skip
    why = "the graph does not run: no kernel" if failed else ""
    broken = parity.Case("no past", 4, 6, 0, 0, 0, None, None, None, None, why)
    lost = [
        parity.Lost(f"model.layers.{at}.weight", (8, at + 1), "FLOAT", 32 * at, at % 2 == 0, "no weight has its bytes")
        for at in range(9)
    ]
    identity = parity.Identity(
        12, 3 if failed else 12, 4_000_000, 1_500_000 if failed else 4_000_000, {"straight": 9, "transposed": 3},
        tuple(lost) if failed else (), tuple(lost[:5]) if failed else (), ("rotary.inv_freq",), 1 + failed,
    )  # fmt: skip
    pools = parity.Pools(parity.Pooled(1.2, 1.4, _figures(1), _figures(2)), None)
    metrics = parity.Metrics(
        parity.Precision("float64"), parity.Precision("float32", device="cuda" if failed else "cpu"), (0, 1), pools,
        pools, parity.Vocabulary(96, (3,) if failed else (), (1, 2), 64),
    )  # fmt: skip
    weights = tuple(
        parity.QuantisedWeight(f"w{bits}", (f"p{bits}",), "MatMulNBits", bits, 32, True, 0.08, 0.07, 1.5)
        for bits in (4, 4, 8)
    )
    quantised = parity.Quantised(
        weights, (), parity.Loss(0.97, 1e-3, 12.5), parity.Loss(0.98, 9e-4, 12.25), 12.0, 512, "tokens of a text"
    )
    provider = parity.ProviderUse(
        "cuda", "CUDAExecutionProvider", 1, {"CUDAExecutionProvider": 40, "CPUExecutionProvider": 3}, ("TopK t",),
        versions={"onnxruntime": "1.31.1"}, notes=("the CPU runs shapes",),
    )  # fmt: skip
    faults = ("the batch axis is fixed",) if failed else ()
    structure = parity.Structure("decoder with cache", "float32", 20, ("input_ids",), ("logits",), faults, ("a note",))
    return parity.Parity(
        verdict,
        "model.onnx",
        "models/llama",
        provider,
        structure,
        identity,
        (
            parity.Gate("rms_ratio", 1.25, 2.0, True, "RMS error of the graph over that of torch"),
            parity.Gate("case_ratio", 123456.0 if failed else 1.5, 5.0, not failed, "the worst case"),
            parity.Gate("runs", None, None, True, "every case runs"),
            *([parity.limited("kl", 1.0, math.inf, "KL divergence")] if overflows else ()),
        ),
        (*cases, broken) if failed or overflows else tuple(cases),
        metrics,
        (parity.Histogram("past", -9.0, 0.25, (2, 0, 5, 9, 4, 0, 0), (1, 0, 3, 8, 2, 1, 0)),),
        "the epsilon of a norm is 1e-05" if failed else "",
        "",
        None if failed else quantised,
        parity.Fed(
            30.0,
            12,
            480,
            144,
            6,
            8,
            {"past": 3, "every token": 2, "longer prompts": 1},
            2.5e-6,
            0.01,
            57 * overflows,
            None if overflows else 4096,
        ),
    )


def graph_outcome() -> GraphOutcome:
    """A deduplicated graph with a proof, a refused proof, and runs that differ."""
    done = SharedMatrix("model.onnx", ("identical", "transposed"), "embed", ("head", "copy"), ("lm_head", "embed"),
                        "F32", (96, 64), 49152, 24576, 73728, 24576, form=HeadForm.GEMM)  # fmt: skip
    left = SharedMatrix("other.onnx", ("cast",), "half", (), (), "F16", (96, 64), 100, 100, 100, 100, left="a Cast")
    plan = GraphPlan("dedup", "models/graph", HeadForm.GEMM, ("model.onnx", "other.onnx"), ("model.onnx",),
                     (done, left), 60000, 30000, 10, 90000, 30000, ("a note",))  # fmt: skip
    runs = SessionRuns(8, ("one row", "several rows"), tuple(f"case {at} (by up to 1e-07)" for at in range(9)), ("x",))
    proofs = (
        SessionProof("model.onnx", (("embed", 1), ("half", 2)), ("half",), runs=runs),
        SessionProof("other.onnx", why_not="onnxruntime is not installed"),
        SessionProof("third.onnx"),
    )
    return GraphOutcome(plan, True, True, "models/out", proofs)


def export_outcome() -> ExportOutcome:
    """An export with everything that its plan and its result can say."""
    outcome = graph_outcome()
    plan = ExportPlan(
        "models/llama", "LlamaForCausalLM", "decoder with cache",
        ExportOptions("float32", HeadForm.FUSED, 20, "cpu", True, "cpu", "genai", None, False, None),
        ("input_ids [batch, sequence]", "attention_mask [batch, total]"), (("model.embed_tokens.weight", "lm_head"),),
        {f"file{number}.json": 100 + number for number in range(8)}, 123_000, 61_000, ("a note",), ("vision_tower",),
    )  # fmt: skip
    return ExportOutcome(
        plan, True, True, "models/out", outcome.plan.matrices, outcome.proofs,
        parity_report(parity.Verdict.FAILED), {"model.onnx": 1000, "model.onnx.data": 60_000},
    )  # fmt: skip


def push_plan(hidden: int) -> Push:
    """A push that leaves out ``hidden`` files."""
    changes = tuple(FileChange(kind, f"{kind}.bin", 1000 + at) for at, kind in enumerate(("add", "replace", "delete")))
    left_out = tuple(f".hidden{number}" for number in range(hidden))
    return Push("out", "org/m", None, "a" * 40, True, "Drop a copy", "One line.\n\nAnother.", (), changes,
                left_out=left_out)  # fmt: skip


Draw = Callable[[], str]


def _twice(render: Callable[..., str], make: Callable[[], Any]) -> Draw:
    """Piped, and on a narrow terminal with colours."""
    return lambda: "\n\n".join([render(make()), render(make(), painted, 72)])


def _summaries() -> str:
    """The last line of `check`: of every case, of no model, and of models that cannot be read."""
    every = check_report()
    unread = replace(every, models=tuple(model for model in every.models if model.failure))
    reports = (every, replace(every, models=()), unread, replace(every, fail_on=Level.NOTE, settings=None))
    return "\n".join(check_view.summary(report, fixing=fixing) for report in reports for fixing in (True, False))


def _plots() -> str:
    """Each plot as a file, one behind the other."""
    sections = small_analysis().sections
    plots = [(plot, section.title) for section in sections for plot in analyze_page.plots(section)]
    return "\n".join(f"{name}\n{text}" for name, text in svg_files(plots).items())


def _exported() -> str:
    outcome = export_outcome()
    results = parity_text.render_results(outcome, replace(outcome.plan, notes=()), painted, 72)
    return "\n\n".join([parity_text.render_export(outcome), results])


def _reports() -> Iterator[tuple[str, Draw]]:
    for name in formats.FORMATS:
        yield f"check-{name}", lambda name=name: formats.render(name, check_report())
    yield "check-terminal", lambda: formats.render("text", check_report(), painted, 72)
    yield "check-summary", _summaries
    yield "fleet", _twice(fleet_text.render, fleet_report)
    yield "fleet-page", lambda: fleet_page.render(fleet_report())
    yield "analyze", _twice(analyze_text.render_analysis, full)
    yield "analyze-page", lambda: analyze_page.render_analysis(small_analysis())
    yield "analyze-plots", _plots
    yield "evolution", _twice(analyze_text.render_evolution, evolution)
    yield "evolution-page", lambda: analyze_page.render_evolution(evolution())
    for verdict in parity.Verdict:
        make = partial(parity_report, verdict)
        yield f"parity-{verdict}", _twice(parity_text.render_parity, make)
        yield f"parity-{verdict}-page", lambda make=make: parity_page.render(make())
    yield "dedup", _twice(plan_text.render_proofs, graph_outcome)
    yield "dedup-plan", _twice(plan_text.render, graph_outcome)
    yield "export", _exported
    yield "push", lambda: "\n".join(plan_text.render_push(push_plan(hidden)) for hidden in (0, 20, 23))


_MODELS = ROOT / "fixtures" / "models"
_COMMANDS = (
    ("inspect", "llama-diverged", "t5", "qwen2-vl", "gpt2-unprefixed", "llama-headless-config"),
    ("inspect --depth full", "bart", "llama-untied-sharded", "../exported/merged-gpt2", "../exported/genai-qwen2-int4"),
    ("retie --dry-run", "llama-duplicated", "bart", "llama-diverged"),
    ("untie --bias zero --dry-run", "llama-tied-sharded", "t5", "bert-mlm"),
    ("resize --to 256 --fill mean --dry-run", "llama-untied", "gemma"),
    ("dedup --dry-run", "llama-duplicated"),
    ("convert --to torch --max-shard-size 20KB --dry-run", "llama-tied"),
    ("diff", ("llama-tied", "llama-diverged"), ("bart", "t5"), ("llama-untied", "llama-untied-sharded")),
)


def _answers(line: str, models: Sequence[str | tuple[str, ...]]) -> str:
    """What a command prints about each model, or each pair of them."""
    texts = []
    for names in models:
        with patch.dict(os.environ, ENVIRONMENT):
            result = run(line, *(_MODELS / name for name in ((names,) if isinstance(names, str) else names)))
        texts.append(f"[{result.exit_code}]\n{result.output}")
    return "\n".join(texts).replace(f"{_MODELS}/", "").replace(f"{ROOT}/", "")


def documents() -> dict[str, Draw]:
    """How each document is made, by the name of its file."""
    every: dict[str, Draw] = dict(_reports())
    for line, *models in _COMMANDS:
        every[line.replace("--", "").replace("  ", " ").replace(" ", "-")] = partial(_answers, line, models)
    return every


def drawn(make: Draw) -> str:
    """The document without its style sheet and version, which have other reasons to change."""
    text = re.sub(r"<style>.*?</style>", "<style></style>", make(), flags=re.DOTALL)
    return f"{text.replace(VERSION, 'VERSION')}\n"


def main() -> None:
    """Write what is rendered now."""
    texts = {name: drawn(make) for name, make in documents().items()}
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, text in texts.items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
