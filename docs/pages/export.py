"""Write `export.md`: what `tieconv export` does, and the figures of each architecture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[1] / "measured" / "export.json"

LAYOUTS = MEASURED.with_name("layouts.json")

INTRO = Path(__file__).with_name("export_text.md")

PROGRAMS = """\
Each program generated 24 greedy tokens for each of two prompts of 20 tokens. One prompt has three padding tokens,
except for genai, which makes the mask itself. A masked language model predicted each token. An encoder of sound or
images got random features. *same* means that all tokens were torch's, and that a session held the matrix once. The
models are tiny, in fp32, on the CPU."""


def page() -> str:
    """Return the text, the table of architectures and the table of head forms."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    return "\n".join(
        (
            INTRO.read_text(encoding="utf-8"),
            *_architectures(measured),
            "",
            *_forms(measured["forms"]),
            *_whole_model(measured),
            *_memory(measured),
            *_layouts(json.loads(LAYOUTS.read_text(encoding="utf-8"))),
            "",
        )
    )


def _architectures(measured: dict[str, Any]) -> Iterator[str]:
    rows = measured["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    yield f"## {len(rows)} architectures"
    yield ""
    yield "The models are tiny (V = 1021, H = 32): the embedding is 131 kB, and most of the rest is graph. *kB* is the"
    yield "size of graph and data. *copies* counts the embedding's matrix in a session. optimum-onnx 0.1.0 ran with"
    yield "transformers 4.57.6 and accelerate; without accelerate it shares nothing. Its graphs of an encoder-decoder"
    yield "have no cache. tieconv's have it, and each session has a copy."
    yield f"Versions: {versions}."
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
    yield "An untied model has a separate embedding and head: one copy of each."
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
    yield "The graph has V = 131072, H = 1024 and fp32 (a matrix is 512 MiB), and ran with one thread. *own* and *file*"
    yield "are MiB of the process after load and run. *own* is its own memory. *file* is the pages of the file that the"
    yield "system may free. *s* is the CPU time against two stored copies: the median of interleaved runs of s tokens."
    yield ""
    yield "| form | disk | own | file | own, no prepacking | file, no prepacking | s = 1 | s = 8 | s = 64 |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        packed, plain = row["packed"], row["unpacked"]
        cells = (row["disk"], packed["own"], packed["file"], plain["own"], plain["file"], *row["latency"].values())
        yield f"| {row['form']} | " + " | ".join(map(str, cells)) + " |"
    yield ""
    yield "Prepacking is ONNX Runtime's own copy of a matrix in the order of its kernels."
    yield "`session.disable_prepacking` = `1` turns it off. With `gemm` and `fused`, the matrix is then in memory once."


def _whole_model(measured: dict[str, Any]) -> Iterator[str]:
    rows, sizes = measured["whole"], measured["whole_model"]
    yield ""
    yield "## One Llama, by each exporter"
    yield ""
    yield f"V = {sizes['V']:,}, H = {sizes['H']:,}, {sizes['layers']} layers, fp32, tied, one thread on the CPU."
    yield "*export* is the CPU time of the whole command, and *peak* its resident memory in MiB."
    yield "The row *transformers* is torch's exporter, as transformers calls it. *own* and *file* are MiB of a session"
    yield "after a run, as above."
    yield "The last columns are milliseconds of CPU time. They are for one token after 64 in the cache, and for prompts"
    yield "of 8, 64 and 256 tokens."
    yield ""
    yield "| written by | MB on disk | export, s | peak | own | file | 1 token | 8 | 64 | 256 |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        cells = (
            row["disk"] // 10**6,
            row["seconds"],
            row["peak"],
            row["own"],
            row["file"],
            *row["milliseconds"].values(),
        )
        yield f"| {row['name']} | " + " | ".join(map(str, cells)) + " |"


def _memory(measured: dict[str, Any]) -> Iterator[str]:
    memory = measured.get("memory")
    if memory:
        yield ""
        yield "## Cost"
        yield ""
        yield memory


def _layouts(measured: dict[str, Any]) -> Iterator[str]:
    plain = [row for row in measured["rows"] if "quantise" not in row]
    full = [row for row in plain if row["precision"] == "fp32"]
    rows = {(row["family"], row["layout"]): row for row in full}
    names = list(measured["versions"])
    yield ""
    yield "## Programs that load a layout"
    yield ""
    yield PROGRAMS
    for name in names:
        packages = ", ".join(f"{package} {version}" for package, version in measured["versions"][name].items())
        yield ""
        yield f"{name}: {packages}."
    yield ""
    yield "| models | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    results = {
        family: " | ".join(_program(rows.get((family, name))) for name in names)
        for family in dict.fromkeys(row["family"] for row in full)
    }
    for cells, families in _by_value(results).items():
        yield f"| {_codes(families)} | {cells} |"
    yield ""
    for name in names:
        half = [row for row in plain if row["precision"] == "fp16" and row["layout"] == name]
        yield f"- {name} in fp16: {_same(half)}."
    yield ""
    yield "A quantised graph has other tokens than torch. ONNX Runtime generated them from the same graph:"
    yield ""
    coded = [row for row in measured["rows"] if "quantise" in row]
    results = {}
    for name, scheme, precision in dict.fromkeys((r["layout"], r["quantise"], r["precision"]) for r in coded):
        chosen = [r for r in coded if (r["layout"], r["quantise"], r["precision"]) == (name, scheme, precision)]
        results[f"{name} in {scheme} ({precision})"] = _same(chosen)
    for same, runs in _by_value(results).items():
        yield f"- {_codes(runs)}: {same}."
    yield ""
    yield "tieconv refuses these, where MODEL is the model's type:"
    yield ""
    yield "| layout | models | reason |"
    yield "|---|---|---|"
    for name in names:
        reasons = {row["family"]: _reason(row) for row in full if row["layout"] == name and "refused" in row}
        for reason, families in _by_value(reasons).items():
            yield f"| {name} | {_codes(families)} | {reason} |"
    yield ""
    yield "`python -m tests.onnx.layouts.measure --write` measures the table. Its options `--precision fp16` and"
    yield "`--quantise` measure the other lines."


def _reason(row: dict[str, Any]) -> str:
    """Return why a layout is refused, with MODEL in place of the type."""
    reason: str = row["refused"].partition(": ")[2]
    name = "[-_]".join(map(re.escape, row["family"].split("-")))
    return re.sub(rf"\b{name}\b", "MODEL", reason)


def _by_value(values: dict[str, str]) -> dict[str, list[str]]:
    """Return the keys of each value, in the order of the values."""
    keys: dict[str, list[str]] = {}
    for key, value in values.items():
        keys.setdefault(value, []).append(key)
    return keys


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _same(rows: list[dict[str, Any]]) -> str:
    """Return for how many of the models that were not refused the program gave the same tokens."""
    tried = [row for row in rows if "refused" not in row]
    same = [row["family"] for row in tried if _program(row) == "same"]
    return f"the same tokens for {len(same)} of {len(tried)} models ({', '.join(same)})"


def _program(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if "refused" in row:
        return "refused"
    if "error" in row:
        return f"error: {row['error']}".replace("|", " ").replace("\n", " ")[:120]
    return "same" if row["same"] and row.get("session", 1) == 1 else "other tokens"
