"""`tieconv export`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tieconv.api import Verdict
from tieconv.api.exports import LAYOUT_NAMES, plan_export
from tieconv.cli.options import choice_option, common_options, device_option, json_option, model_argument, on_device
from tieconv.cli.progress import stage_progress
from tieconv.cli.screen import paint, painter, say, timed, width
from tieconv.cli.streams import echo
from tieconv.errors import NotRunError
from tieconv.text import path_word, shown, size

if TYPE_CHECKING:
    from tieconv.api import ExportOutcome, PlannedExport


_STAGES = {
    "torch": "loading torch",
    "load": "loading the model",
    "trace": "tracing the graph",
    "share": "storing the tied matrix once",
    "parity": "measuring parity",
    "write": "writing",
    "rename": "publishing",
}
"""The text on the screen for each stage."""


@click.command("export")
@model_argument
@click.option("-o", "--output", type=click.Path(), metavar="OUT", help="Write the directory OUT, which must not exist.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists and is a model.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@choice_option("--precision", "fp32", "fp16", "bf16", help="Type of the graph's weights and arithmetic.")
@choice_option(
    "--head-form",
    "gemm",
    "fused",
    "transpose",
    help="How the head reads the embedding: Gemm, FusedMatMul or Transpose. With Transpose a session stores a second "
    "copy.",
)
@choice_option(
    "--fuse",
    "none",
    "cpu",
    "cuda",
    help="Fuse attention, norms and activations into ONNX Runtime's operators for this provider. No other runtime runs "
    "such a graph. Its head is a FusedMatMul.",
)
@choice_option(
    "--layout",
    *LAYOUT_NAMES,
    help="File and tensor names that transformers, optimum, onnxruntime-genai or transformers.js loads.",
)
@click.option(
    "--quantise",
    type=click.Choice(["int8", "int4", "dynamic-int8"]),
    help="Quantise the weights with ONNX Runtime's quantiser. Embedding and head read one quantised matrix.",
)
@click.option(
    "--inputs-embeds",
    is_flag=True,
    help="Write the decoder as a graph of inputs_embeds, and its embedding as a second graph. Always so for a decoder "
    "of images or sound.",
)
@click.option("--opset", type=click.IntRange(18), help="ONNX opset. Default: the opset of PyTorch's exporter.")
@choice_option(
    "--provider",
    "auto",
    "cpu",
    "cuda",
    help="Where to measure parity. cuda: fails if a large operator runs on the CPU.",
)
@device_option
@click.option(
    "--no-parity", is_flag=True, help="Do not measure the logits. The weights are still compared bit for bit."
)
@json_option
@common_options
def command(
    model: str,
    output: str | None,
    overwrite: bool,
    dry_run: bool,
    no_parity: bool,
    as_json: bool,
    provider: str,
    device: int | None,
    **options: Any,
) -> None:
    """Export MODEL to ONNX with each tied matrix stored once, and measure parity.

    Writes one graph for a decoder with its key-value cache, or for a masked language model. Writes two graphs with
    caches for an encoder-decoder. Of a decoder of images or sound it writes the language model: a decoder that reads
    inputs_embeds. The graph embed_tokens.onnx computes them from token ids. Exits with 0 if parity passed and with 1
    if it failed. Exits with 2 if MODEL could not be exported or parity could not be run. Writes OUT only if parity
    passed, or with --no-parity.
    """
    from tieconv.reporters.text.parity_text import render_export as render
    from tieconv.reporters.text.parity_text import render_results

    if overwrite and output is None:
        raise click.UsageError("--overwrite needs -o OUT")
    planned = plan_export(model, parity=not no_parity, provider=on_device(provider, device), **options)
    before = planned.outcome()
    if output is not None:
        if not dry_run:
            planned.clear(output)
        planned.check(output, overwrite=overwrite)
    if output is None or dry_run:
        echo(str(before) if as_json else render(before, paint, width()))
        say("nothing was written" if dry_run else "nothing was written: give -o OUT")
        return
    if not as_json:
        say(render(before, painter(sys.stderr), width(sys.stderr)))
    outcome = _execute(planned, output, overwrite=overwrite)
    echo(str(outcome) if as_json else render_results(outcome, before.plan, paint, width()))
    _close(outcome, model, output)


def _execute(planned: PlannedExport, output: str, *, overwrite: bool) -> ExportOutcome:
    with timed("export"), stage_progress("export") as show:

        def progress(stage: str, done: int, whole: int) -> None:
            show(_STAGES.get(stage, stage), done, whole)

        progress("torch", 0, 1)
        return planned.execute(output, overwrite=overwrite, progress=progress)


def _close(outcome: ExportOutcome, model: str, output: str) -> None:
    report = outcome.parity
    if outcome.executed:
        parity_text = "parity passed" if report else "parity not measured"
        say(f"wrote {shown(output)}: {size(sum(outcome.files.values()))} of graph, {parity_text}")
        return
    assert report is not None
    if report.verdict is Verdict.NOT_RUN:
        hint = f"{report.hint}; or write it unmeasured with --no-parity".removeprefix("; or ")
        raise NotRunError(f"nothing was written: parity was not run: {report.reason}", hint)
    again = f"tieconv export {path_word(model)} -o {path_word(output)} --no-parity"
    say(f"nothing was written: parity failed; to look at the graph all the same: {again}")
    sys.exit(1)
