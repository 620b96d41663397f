"""`tieconv export` and `parity`: write the graph of a model, and measure whether it computes the same."""

from __future__ import annotations

import sys
from typing import Any

import click

from tieconv.api import Verdict, write_text
from tieconv.api.graphs import LAYOUT_NAMES, parity, plan_export, seconds_of
from tieconv.cli import options as shared
from tieconv.cli.screen import document, echo, paint, painter, say, show, stage_progress, timed, width
from tieconv.errors import NotRunError
from tieconv.text import path_word, shown, size

_STAGES = {
    "load": "loading the model",
    "trace": "tracing the graph",
    "share": "storing the tied matrix once",
    "parity": "measuring parity",
    "write": "writing",
    "rename": "publishing",
    "clean up": "interrupted, removing the unfinished files",
}
"""The text on the screen for each stage."""


def _budget(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        _ = value is None or seconds_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    return value


budget_option = click.option(
    "--budget",
    metavar="TIME",
    callback=_budget,
    help="How long the batches of parity may compute, such as 30s or 5m. full: all batches, and up to 2,048 "
    "positions. Default: about as long as an export of MODEL, or less; all batches of a quantised graph.",
)


@click.command("export")
@shared.model_argument
@shared.path_option("-o", "--output", metavar="OUT", help="Write the directory OUT, which must not exist.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a model and holds no other files.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@shared.choice_option("--precision", "fp32", "fp16", "bf16", help="Type of the graph's weights and arithmetic.")
@shared.choice_option(
    "--head-form",
    "gemm",
    "fused",
    "transpose",
    help="How the head reads the embedding: Gemm, FusedMatMul or Transpose. With Transpose a session stores a second "
    "copy.",
)
@shared.choice_option(
    "--fuse",
    "none",
    "cpu",
    "cuda",
    help="Fuse attention, norms and activations into ONNX Runtime's operators for this provider. No other runtime runs "
    "such a graph. Its head is a FusedMatMul.",
)
@shared.choice_option(
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
@shared.choice_option(
    "--provider",
    "auto",
    "cpu",
    "cuda",
    help="Where to measure parity. cuda: fails if a large operator runs on the CPU.",
)
@shared.device_option
@click.option(
    "--no-parity", is_flag=True, help="Do not measure the logits. The weights are still compared bit for bit."
)
@budget_option
@shared.json_option
@shared.common_options
def export_command(
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
    from tieconv.reporters.text.parity_text import render_export as render, render_results

    if overwrite and output is None:
        raise click.UsageError("--overwrite needs -o OUT")
    if no_parity and options["budget"] is not None:
        raise click.UsageError("--budget has no effect with --no-parity")
    planned = plan_export(model, parity=not no_parity, provider=shared.on_device(provider, device), **options)
    if output is not None:
        if not dry_run:
            planned.clear(output)
        planned.check(output, overwrite=overwrite)
    before = planned.outcome(output, overwrite=overwrite)
    if output is None or dry_run:
        document(str(before)) if as_json else echo(render(before, paint, width()))
        say("nothing was written" if dry_run else "nothing was written: give -o OUT")
        return
    if not as_json:
        say(render(before, painter(sys.stderr), width(sys.stderr)))
    with timed("export"), stage_progress("export") as show:

        def progress(stage: str, done: int, whole: int) -> None:
            if stage in _STAGES:
                show(f"{_STAGES[stage]}, step {done + 1} of {whole}" if whole else _STAGES[stage], 0, 0)
            else:
                show(stage, done, whole)

        show("loading torch", 0, 0)
        outcome = planned.execute(output, overwrite=overwrite, progress=progress)
    document(str(outcome)) if as_json else echo(render_results(outcome, before.plan, paint, width()))
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


@click.command("parity")
@click.argument("onnx", type=shared.MODEL_PATH)
@click.argument("model", default=".", type=shared.MODEL_PATH)
@shared.choice_option(
    "--provider", "auto", "cpu", "cuda", help="Where to run the graph. cuda: fails if a large operator runs on the CPU."
)
@shared.device_option
@shared.choice_option(
    "--reference",
    "auto",
    "float64",
    "float32",
    help="Precision of the PyTorch reference. auto: float64 if it fits into memory.",
)
@shared.choice_option(
    "--reference-device",
    "cpu",
    "cuda",
    help="Where to run the PyTorch reference. cuda: on the GPU of --device, faster for a large model.",
)
@click.option(
    "--quantised",
    is_flag=True,
    help="ONNX is a quantised graph: compare it with its own dequantised weights, and judge its loss.",
)
@shared.path_option(
    "--text", help="With --quantised: measure the perplexity on this text, or on the token ids of a .npy or .json file."
)
@shared.path_option("--inputs", help="Also run the arrays in FILE (npz): integers by the names of the graph's inputs.")
@click.option("--length", type=click.IntRange(1), metavar="N", help="Also run a sequence of N tokens.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Also run a batch of N rows.")
@budget_option
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="The most seconds of one run of the graph. Default: 30 s, more for a large model.",
)
@click.option(
    "--max-memory",
    type=click.FloatRange(0.1),
    metavar="GB",
    help="The most memory of the measurement. Default: 4 GB, more for a large model.",
)
@shared.path_option("--html", help="Also write the report, with plots, to FILE.")
@shared.json_option
@shared.common_options
def parity_command(
    onnx: str,
    model: str,
    provider: str,
    device: int | None,
    max_memory: float | None,
    html: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure whether the graph ONNX computes what the checkpoint MODEL computes.

    Every matrix of MODEL, and each vector from 4,096 numbers on, must be in the graph, bit for bit. The graph's error
    against a float64 PyTorch reference must not be larger than PyTorch's error in the graph's precision. Exits with 0
    if parity passed, with 1 if it failed, and with 2 if it could not be run.
    """
    if options["text"] is not None and not options["quantised"]:
        raise click.UsageError("--text needs --quantised")
    if options["quantised"] and any(options[name] for name in ("inputs", "length", "batch")):
        raise click.UsageError("--inputs, --length and --batch need a graph without --quantised")
    sizes: dict[str, Any] = {name: options.pop(name) or 0 for name in ("length", "batch")}
    memory = None if max_memory is None else int(max_memory * 1e9)
    with stage_progress("parity") as progress:
        options |= {"provider": shared.on_device(provider, device), "max_memory": memory, "progress": progress}
        report = parity(onnx, model, **sizes, **options)
    if as_json:
        document(str(report))
    else:
        from tieconv.reporters.text.parity_text import render_parity as render

        show(render(report, paint, width()))
    if html:
        from tieconv.reporters.html.parity_page import render as render_page

        write_text(html, render_page(report))
        say(f"wrote {shown(html)}")
    if report.verdict is Verdict.NOT_RUN:
        raise NotRunError(report.reason, report.hint)
    sys.exit(0 if report.verdict is Verdict.PASSED else 1)
