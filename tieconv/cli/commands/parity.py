"""`tieconv parity`."""

from __future__ import annotations

import sys

import click

from tieconv.api import Parity, Verdict
from tieconv.api.exports import parity
from tieconv.api.reports import write_report
from tieconv.cli.options import MODEL_PATH, choice_option, common_options, device_option, json_option, on_device
from tieconv.cli.screen import paint, say, width
from tieconv.cli.streams import document, show
from tieconv.errors import NotRunError
from tieconv.text import shown


@click.command("parity")
@click.argument("onnx", type=MODEL_PATH)
@click.argument("model", default=".", type=MODEL_PATH)
@choice_option(
    "--provider",
    "auto",
    "cpu",
    "cuda",
    help="Where to run the graph. cuda: fails if a large operator runs on the CPU.",
)
@device_option
@choice_option(
    "--reference",
    "auto",
    "float64",
    "float32",
    help="Precision of the PyTorch reference. auto: float64 if it fits into memory.",
)
@choice_option(
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
@click.option(
    "--text",
    type=click.Path(),
    metavar="FILE",
    help="With --quantised: measure the perplexity on this text, or on the token ids of a .npy or .json file.",
)
@click.option(
    "--inputs",
    type=click.Path(),
    metavar="FILE",
    help="Also run the arrays in FILE (npz): integers by the names of the graph's inputs.",
)
@click.option("--length", type=click.IntRange(1), metavar="N", help="Also run a sequence of N tokens.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Also run a batch of N rows.")
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
@click.option("--html", type=click.Path(), metavar="FILE", help="Also write the report, with plots, to FILE.")
@json_option
@common_options
def command(
    onnx: str,
    model: str,
    provider: str,
    device: int | None,
    reference: str,
    reference_device: str,
    quantised: bool,
    text: str | None,
    inputs: str | None,
    length: int | None,
    batch: int | None,
    timeout: float | None,
    max_memory: float | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Measure whether the graph ONNX computes what the checkpoint MODEL computes.

    Every tensor of MODEL must be in the graph, bit for bit. The graph's error against a float64 PyTorch reference must
    not be larger than PyTorch's error in the graph's precision. Exits with 0 if parity passed, with 1 if it failed,
    and with 2 if it could not be run.
    """
    if text is not None and not quantised:
        raise click.UsageError("--text needs --quantised")
    if quantised and (inputs or length or batch):
        raise click.UsageError("--inputs, --length and --batch need a graph without --quantised")
    report = parity(
        onnx,
        model,
        provider=on_device(provider, device),
        reference=reference,
        reference_device=reference_device,
        quantised=quantised,
        text=text,
        inputs=inputs,
        length=length or 0,
        batch=batch or 0,
        timeout=timeout,
        max_memory=None if max_memory is None else int(max_memory * 1e9),
    )
    if as_json:
        document(str(report))
    else:
        from tieconv.reporters.text.parity_text import render_parity as render

        show(render(report, paint, width()))
    if html:
        _write(html, report)
    if report.verdict is Verdict.NOT_RUN:
        raise NotRunError(report.reason, report.hint)
    sys.exit(0 if report.verdict is Verdict.PASSED else 1)


def _write(path: str, report: Parity) -> None:
    from tieconv.reporters.html.parity_page import render

    write_report(path, render(report))
    say(f"wrote {shown(path)}")
