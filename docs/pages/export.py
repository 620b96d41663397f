"""`export.md`: what `tieconv export` does and promises, and what was measured on each architecture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[1] / "measured" / "export.json"

INTRO = Path(__file__).with_name("export_text.md")


def page() -> str:
    """The text, the table of architectures, the table of head forms."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    return "\n".join(
        (
            INTRO.read_text(encoding="utf-8"),
            *_architectures(measured),
            "",
            *_forms(measured["forms"]),
            *_memory(measured),
            "",
        )
    )


def _architectures(measured: dict[str, Any]) -> Iterator[str]:
    rows = measured["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    yield f"## {len(rows)} architectures"
    yield ""
    yield "Tiny models (V = 1021, H = 32, weights of standard deviation 0.15): the embedding is 131 kB, most of the"
    yield "rest is graph. *kB* are of graph and data, *copies* those of the embedding's matrix that sessions hold after"
    yield "ONNX Runtime's optimisations. optimum-onnx 0.1.0 (with transformers 4.57.6 and accelerate, without which it"
    yield f"shares nothing) writes two graphs for an encoder-decoder. {versions}."
    yield ""
    heads = ["model"]
    heads += [f"{tool}: {column}" for tool in ("transformers", "optimum", "tieconv") for column in ("kB", "copies")]
    heads += ["largest error", "RMS ratio", "parity", "fp16: kB", "RMS ratio", "parity"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        full, half = row["fp32"], row["fp16"]
        cells = [
            row["name"], *_held(row["transformers"]), *_held(row.get("optimum")), *_held(full),
            _figure(full.get("max_abs")), _figure(full.get("rms_ratio")), full.get("verdict", "not exported"),
            _held(half)[0], _figure(half.get("rms_ratio")), half.get("verdict", "not exported"),
        ]  # fmt: skip
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "An untied model has an embedding and a head of its own: one copy of each."
    for row in rows:
        for precision in ("fp32", "fp16"):
            cell = row[precision]
            if "error" in cell:
                yield f"\n{row['name']}, {precision}: {cell['error']}"
            elif cell["verdict"] != "passed":
                yield f"\n{row['name']}, {precision}, did not pass: {cell['failed'][0]}."
        if "error" in row.get("optimum", {}):
            yield f"\n{row['name']} by optimum: {row['optimum']['error'].split(', but')[0]}"


def _held(cell: dict[str, Any] | None) -> tuple[str, str]:
    if not cell or "bytes" not in cell:
        return "–", "–"
    return f"{cell['bytes'] / 1000:.0f}", str(cell["session"])


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1e}"


def _forms(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "## The forms of a head"
    yield ""
    yield "V = 131072, H = 1024, fp32 (a matrix is 512 MiB), one thread: MiB of a process after load and run, its own"
    yield "and pages of the file that the system may take back; time of the processor against two stored"
    yield "copies, medians of interleaved runs of s tokens."
    yield ""
    yield "| form | disk | own | file | own, no prepacking | file, no prepacking | s = 1 | s = 8 | s = 64 |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        packed, plain = row["packed"], row["unpacked"]
        cells = (row["disk"], packed["own"], packed["file"], plain["own"], plain["file"], *row["latency"].values())
        yield f"| {row['form']} | " + " | ".join(map(str, cells)) + " |"
    yield ""
    yield "Prepacking is ONNX Runtime's own copy of a matrix in the order of its kernels;"
    yield "`session.disable_prepacking` = `1` does without. With `gemm` and `fused` the matrix is then in memory once."


def _memory(measured: dict[str, Any]) -> Iterator[str]:
    memory = measured.get("memory")
    if memory:
        yield ""
        yield "## Cost"
        yield ""
        yield memory
