"""Write `gpu.md`: how to measure on a GPU, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[1] / "measured" / "gpu.json"
STANDIN = MEASURED.with_name("gpu_standin.json")
MORE = "gpu_h*.json"
"""Later measurements on other devices, which lie beside `MEASURED`."""
INTRO = Path(__file__).with_name("gpu_text.md")
SCHEMA, CUDA = "tieconv.gpu/1", "CUDAExecutionProvider"
Row = dict[str, Any]


def page() -> str:
    """Return the text, then every part of the committed documents."""
    text = INTRO.read_text(encoding="utf-8")
    paths = (*sorted(MEASURED.parent.glob(MORE), reverse=True), MEASURED)
    documents = [document for path in paths if (document := read(path))]
    return "\n".join((text, *figures(documents), "", *without_device(read_standin(STANDIN)), ""))


def read(path: Path) -> dict[str, Any] | None:
    """Return the document at ``path``, or ``None`` if it does not exist. Raise ValueError for a run without CUDA."""
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wrong = next(_wrong(document), None)
    if wrong:
        raise ValueError(f"{path} is no measurement on a GPU: {wrong}")
    return document


def read_standin(path: Path) -> dict[str, Any]:
    """Return the document of the stand-in at ``path``. Raise ValueError if it holds a computed figure."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    parts = document["parts"]
    wrong_header = (document["schema"], document["provider"], document["small"]) != (SCHEMA, "standin", False)
    if wrong_header or any(rows for part, rows in parts.items() if part not in ("placement", "memory")):
        raise ValueError(f"{path} is no measurement of the stand-in")
    if any(row["memory"] != "stand-in" for row in parts["memory"]):
        raise ValueError(f"{path}: memory of another device")
    return document


def _wrong(document: dict[str, Any]) -> Iterator[str]:
    if document.get("schema") != SCHEMA:
        yield f"schema {document.get('schema')}"
    if document.get("provider") != "cuda" or document.get("rehearsal") is not False:
        yield f"provider {document.get('provider')}, rehearsal {document.get('rehearsal')}"
    if not (document.get("machine", {}).get("gpu") or {}).get("name"):
        yield "no device"
    parts = ("verdicts", "faults", "device_faults", "exports", "on_device", "seven_billion", "memory", "latency")
    for part in (*parts, "serving"):
        for row in document.get("parts", {}).get(part, ()):
            if row.get("verdict") != "not_run" and row.get("active") not in (CUDA, "cuda", None):
                yield f"{part} {row['key']} ran on {row['active']}"
            if row.get("memory", "device") != "device":
                yield f"{part} {row['key']} is of the {row['memory']}"


def figures(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the devices, the newest document first, and one table for each part that one of them measured."""
    yield "## Measured"
    yield ""
    if not documents:
        parts = ", ".join(f"`{part}`" for part in PARTS)
        yield f"**Nothing was measured on a GPU yet.** Not run: {parts}. The tests run"
        yield "the same code on the CPU and against an imitation of onnxruntime. That proves no figure of a GPU."
        return
    for document in documents:
        yield from (*_machine(document), "")
    left = [entry for document in documents for entry in document.get("left") or ()]
    for part, (title, table) in PARTS.items():
        rows = _newest(documents, part)
        measured = [row for row, _ in rows if "error" not in row]
        if measured:
            yield from (f"### {title}", "", *_devices(rows), "", *table(measured), "")
            left = [entry for entry in left if entry.removeprefix(f"{part}/") not in {row["key"] for row in measured}]
        left += [f"{part}/{row['key']}" for row, _ in rows if "error" in row]
        left += [] if rows else [part]
    if left:
        yield f"Not measured: {', '.join(f'`{entry}`' for entry in dict.fromkeys(left))}."


def _newest(documents: Sequence[dict[str, Any]], part: str) -> list[tuple[Row, str]]:
    """Return each row of a part with its device. Of two rows with one key the newer counts, unless it failed."""
    rows: dict[str, tuple[Row, str]] = {}
    for document in documents:
        for row in document["parts"].get(part, ()):
            if row["key"] not in rows or "error" in rows[row["key"]][0]:
                rows[row["key"]] = row, str(document["machine"]["gpu"]["name"])
    return [*rows.values()]


def _devices(rows: list[tuple[Row, str]]) -> Iterator[str]:
    """Yield where the rows were measured."""
    by_device: dict[str, dict[str, None]] = {}
    for row, device in rows:
        if "error" not in row:
            by_device.setdefault(device, {})[str(row.get("model", row["key"]))] = None
    if len(by_device) == 1:
        yield f"On {next(iter(by_device))}."
        return
    (newest, names), *devices = by_device.items()
    yield f"On {newest}: {', '.join(names)}. The other rows: {', '.join(name for name, _ in devices)}."


def without_device(measured: dict[str, Any]) -> Iterator[str]:
    """Yield what onnxruntime's CUDA provider placed and copied without a device."""
    machine, rows = measured["machine"], measured["parts"]
    ort, packages = machine["onnxruntime"], machine["packages"]
    yield "## Without a GPU: what onnxruntime places there"
    yield ""
    yield "These figures use onnxruntime-gpu's CUDA provider and an imitated device. The device has memory and"
    yield "computes nothing. The figures show which nodes the provider accepts, what it copies to the device, and"
    yield "how often. They prove no logits, no time, and not that a device runs the graph. The measurement needs"
    yield "onnxruntime-gpu, a CPU build of torch and a C compiler:"
    yield "`python -m tests.gpu.measure -o docs/measured/gpu_standin.json --provider standin`."
    yield ""
    yield f"{measured['date']}, tieconv {measured['tieconv']}: onnxruntime {ort['version']} for CUDA {ort['cuda']};"
    yield f"transformers {packages.get('transformers')}; torch {packages.get('torch')}. The imitated"
    yield "device reports compute capability 9.0."
    yield ""
    yield from _placement(rows["placement"])
    yield from _errors(rows["placement"])
    yield ""
    yield "**Memory** of the large model's session, for each form of the head and for transformers' own export."
    yield from _memory(rows["memory"])
    yield from _errors(rows["memory"])


def _placement(rows: list[Row]) -> Iterator[str]:
    placed = [row for row in rows if "placement" in row]
    models = len({row["model"] for row in placed})
    yield f"**Placement**: {len(placed)} of {len(rows)} graphs ({models} models in three precisions) start on CUDA."
    yield "Every product, norm, attention and lookup of a weight runs there."
    yield f"On the CPU, for shapes: {_elsewhere(placed)}."
    yield from _not_run(rows)


def _machine(measured: dict[str, Any]) -> Iterator[str]:
    machine = measured["machine"]
    gpu, torch, ort = machine["gpu"], machine["torch"], machine["onnxruntime"]
    packages = machine["packages"]
    device = f"{gpu['name']} (compute capability {gpu['capability']}, {gpu['bytes'] / 2**30:.0f} GiB)"
    yield f"{measured['date']}, tieconv {measured['tieconv']}: {device}."
    yield ""
    yield f"The driver {gpu['driver'] or 'unknown'} serves CUDA {gpu['driver_cuda']}."
    yield f"onnxruntime {ort['version']} is built for CUDA {ort['cuda']}."
    yield f"torch {torch['version']} has CUDA {torch['cuda']} and cuDNN {torch['cudnn']}."
    yield f"With transformers {packages.get('transformers')}, onnx {packages.get('onnx')}, Python {machine['python']}."
    sources = sorted({row["source"] for rows in measured["parts"].values() for row in rows if "source" in row})
    yield f"It took {measured['seconds']:.0f} s. SHA-256 of tieconv's sources: {', '.join(sources) or 'unknown'}."


def _errors(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        if "error" in row:
            # A library's message, which no rule of language binds.
            error = row["error"].rstrip(": ")
            yield f"\n**Not measured**, {row['key']}: `{error}`"


def _verdicts(rows: list[Row]) -> Iterator[str]:
    passed = [row for row in rows if row["verdict"] == "passed"]
    yield f"{len(passed)} of {len(rows)} passed. Each cell is the RMS ratio, and in brackets that of the worst case."
    yield from _with_tf32(rows)
    yield ""
    precisions = list(dict.fromkeys(row["precision"] for row in rows if "precision" in row))
    yield from _head("model", *precisions)
    models: dict[str, dict[str, Row]] = {}
    for row in rows:
        models.setdefault(row.get("model", row["key"]), {})[row.get("precision", "")] = row
    for model, by_precision in models.items():
        yield _line(model, *(_ratios(by_precision.get(precision)) for precision in precisions))
    for row in rows:
        if row["verdict"] == "failed":
            yield f"\n{row['key']}: beyond its limit: " + ", ".join(f"`{name}`" for name in row["failed"])
    yield from _not_run(rows)
    yield ""
    yield from _room([row for row in rows if "rms_ratio" in row.get("gates", {})])
    yield ""
    yield f"On the CPU: {_elsewhere(rows)}."


def _with_tf32(rows: list[Row]) -> Iterator[str]:
    """Yield the RMS ratios with TF32, which parity does not judge."""
    ratios = [((row.get("tf32") or {}).get("logits") or {}).get("ratio") for row in rows]
    known = [ratio for ratio in ratios if ratio is not None]
    if known:
        span = f"{_figure(min(known))} to {_figure(max(known))}"
        yield f"If float32 products may be rounded to TF32, the RMS ratio is {span}."


def _ratios(row: Row | None) -> str:
    """Return the two ratios of a row, with its verdict unless it passed."""
    if row is None:
        return ""
    gates = row.get("gates", {})
    total, worst = (_figure(gates.get(name, {}).get("value")) for name in ("rms_ratio", "case_ratio"))
    verdict = "" if row["verdict"] == "passed" else f"**{row['verdict']}**"
    return f"{verdict} {total} ({worst})".strip() if total else verdict


def _elsewhere(rows: list[Row]) -> str:
    elsewhere: set[str] = set()
    for row in rows:
        for name, operators in row.get("placement", {}).items():
            elsewhere |= set(operators) if name != CUDA else set()
    return ", ".join(sorted(elsewhere)) or "nothing"


def _room(rows: list[Row]) -> Iterator[str]:
    """Yield how close healthy models are to the limits, including models beyond a limit."""
    yield "The largest figure of all these graphs, by precision, with its model:"
    yield ""
    names = ("rms_ratio", "max_ratio", "case_ratio", "steps_rms_ratio", "steps_max_ratio")
    limits = {name: row["gates"][name]["limit"] for row in rows for name in names if name in row["gates"]}
    yield from _head("precision", *(f"`{name}` (≤ {limits[name]:g})" for name in names if name in limits))
    for precision in dict.fromkeys(row["precision"] for row in rows):
        chosen = [row for row in rows if row["precision"] == precision]
        yield _line(precision, *(_largest(chosen, name) for name in names if name in limits))


def _largest(rows: list[Row], name: str) -> str:
    """Return the largest figure with its model. A figure that is not finite is the largest."""
    values = {row["model"]: row["gates"][name]["value"] for row in rows if name in row["gates"]}
    if not values:
        return ""
    model = max(values, key=lambda key: float("inf") if values[key] is None else values[key])
    return f"{_figure(values[model]) or 'infinite'} {model}"


def _faults(rows: list[Row]) -> Iterator[str]:
    caught = [row for row in rows if row["verdict"] == "failed"]
    run = [row for row in rows if row["verdict"] != "not_run"]
    yield f"{len(caught)} of {len(run)} were caught. Each figure is the smallest RMS ratio of the models with a fault."
    yield ""
    yield from _head("fault", "caught", "fp32", "fp16", "bf16", "gates that failed")
    for label in dict.fromkeys(row["fault"] for row in run):
        chosen = [row for row in run if row["fault"] == label]
        gates = dict.fromkeys(name for row in chosen for name in row["failed"] if not name.startswith("steps_"))
        yield _line(label, f"{sum(row['verdict'] == 'failed' for row in chosen)} of {len(chosen)}",
                    *(_smallest(chosen, precision) for precision in ("fp32", "fp16", "bf16")),
                    ", ".join(f"`{name}`" for name in gates))  # fmt: skip
    for row in run:
        if row["verdict"] != "failed":
            yield f"\n**Not caught**: {row['key']}"
    yield from _not_run(rows)


def _device_faults(rows: list[Row]) -> Iterator[str]:
    yield "The file is right, and what computes it is not. A fault is caught if parity fails or gives no verdict."
    yield ""
    yield from _head("fault", "model", "verdict", "RMS ratio", "what parity said")
    for row in rows:
        gates = ", ".join(f"`{name}`" for name in row["failed"])
        ratio = _figure(row["gates"].get("rms_ratio", {}).get("value"))
        where = f"{row['model']} {row['precision']}"
        yield _line(row["fault"], where, row["verdict"], ratio, gates or row.get("reason") or "")
    for row in rows:
        if row["verdict"] == "passed":
            yield f"\n**Not caught**: {row['fault']}. Figures as without the fault mean that it had no effect."


def _exports(rows: list[Row]) -> Iterator[str]:
    yield "`tieconv export MODEL -o OUT --precision … --provider cuda`: parity measures the graph that will be served."
    yield "*fused* adds `--fuse cuda`. int8 and int4 are values of `--quantise`."
    yield ""
    results: dict[str, list[str]] = {}
    for row in rows:
        written = ", ".join(f"`{name}`" for name in row["written"]) or "nothing"
        verdict = f"exit {row['exit']}, {row['verdict'] or 'no verdict'}"
        facts = f"{verdict}, ran on {row['active'] or 'nothing'}, wrote {written}"
        results.setdefault(facts, []).append(row["precision"])
    for facts, precisions in results.items():
        yield f"- {'; '.join(precisions)}: {facts}"


def _smallest(rows: list[Row], precision: str) -> str:
    values = [row["gates"].get("rms_ratio", {}).get("value") for row in rows if row["precision"] == precision]
    return _figure(min((value for value in values if value is not None), default=None))


def _refusals(rows: list[Row]) -> Iterator[str]:
    yield from _head("case", "verdict", "ran on", "reported", "hint")
    for row in rows:
        reason = row.get("reason") or "; ".join(row.get("notes", ()))
        yield _line(row["case"], row["verdict"], row["active"] or "", reason, row.get("hint") or "")


def _on_device(rows: list[Row]) -> Iterator[str]:
    yield "`tieconv parity … --provider cuda --reference-device cuda`. A planted fault must fail here too."
    yield ""
    yield from _head("model", "precision", "fault", "verdict", "RMS ratio", "reference on", "seconds")
    for row in rows:
        ratio = _figure(row["gates"].get("rms_ratio", {}).get("value"))
        where = row.get("reference_device") or ""
        yield _line(row["model"], row["precision"], row["fault"] or "", row["verdict"], ratio, where,
                    row["parity_seconds"])  # fmt: skip


def _seven_billion(rows: list[Row]) -> Iterator[str]:
    yield "A Llama with V = 128256, H = 4096 and 32 layers, exported in bf16 with the shared head. The weights of the"
    yield "graph were proved bit for bit when it was exported. Memory is in MiB, as under Memory."
    for row in rows:
        if "milliseconds" in row:
            yield ""
            lengths = row["milliseconds"]
            forms = list(dict.fromkeys(form for times in lengths.values() for form in times))
            titles = [f"ms of {form}, {length} token{'s' * (length != '1')}" for length in lengths for form in forms]
            yield from _head("matrix", "stored", "loaded", "after a run", "beyond", *titles)
            times = [f"{lengths[length][form]:.3g}" for length in lengths for form in forms]
            room = (_mib(row[name]) for name in ("matrix", "stored", "loaded", "ran"))
            yield _line(*room, f"{row['beyond_stored']:.2f}", *times)
        if row.get("verdict"):
            gates = row.get("gates", {})
            yield ""
            yield from _head("verdict", "RMS ratio", "reference on", "export: seconds", "parity: seconds")
            ratio = _figure(gates.get("rms_ratio", {}).get("value"))
            seconds = (row.get("export_seconds", ""), row.get("parity_seconds", ""))
            yield _line(row["verdict"], ratio, row.get("reference_device") or "", *seconds)


def _memory(rows: list[Row]) -> Iterator[str]:
    yield "The figures are the used memory of the device, in MiB. *loaded* is measured after the session was made, and"
    yield "*after a run* after one token. *beyond* is the excess over the stored weights, in matrices; 1 means a second"
    yield "copy. The session allocates only what it needs (`kSameAsRequested`). *default* uses onnxruntime's own"
    yield "allocator, which allocates powers of two."
    yield ""
    heads = ("precision", "form", "matrix", "stored", "loaded", "after a run", "beyond")
    yield from _head(*heads, "default: loaded", "default: after a run")
    default = {(row["precision"], row["form"]): row for row in rows if row.get("arena") == "default"}
    for row in (row for row in rows if row.get("arena") == "exact"):
        default_row = default.get((row["precision"], row["form"]), {})
        exact = (
            *(_mib(row[name]) for name in ("matrix", "stored", "loaded", "ran")),
            f"{round(row['beyond_stored'], 2) + 0.0:.2f}",
        )
        yield _line(row["precision"], row["form"], *exact, *(_mib(default_row.get(name)) for name in ("loaded", "ran")))
    yield from _not_run(rows)


def _not_run(rows: list[Row]) -> Iterator[str]:
    """Yield the rows without a verdict, by reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.get("verdict") == "not_run":
            reasons.setdefault(row["reason"], []).append(row["key"])
    for reason, keys in reasons.items():
        yield f"\n**Not run**: {', '.join(keys)}: {reason}"


def _latency(rows: list[Row]) -> Iterator[str]:
    forms = list(dict.fromkeys(row["form"] for row in rows if "form" in row))
    yield "The figures are milliseconds: the median, and in brackets the 10th and 90th percentile. Every pass begins"
    yield "with an empty cache and returns the logits of every token. torch runs eagerly with its own attention."
    yield ""
    yield from _head("precision", "tokens", *forms)
    cells = {(row["precision"], row["sequence"], row["form"]): row for row in rows if "form" in row}
    for precision, sequence in dict.fromkeys(key[:2] for key in cells):
        measured = (cells.get((precision, sequence, form)) for form in forms)
        yield _line(precision, sequence, *(_span(row) if row else "" for row in measured))
    yield from _not_run(rows)


def _serving(rows: list[Row]) -> Iterator[str]:
    yield "As above, of what makes serving fast: torch compiled for each length, and a CUDA graph that onnxruntime"
    yield "captured. A replayed graph must give the logits of other tokens bit for bit."
    yield ""
    yield from _head("precision", "pass", "tokens", "milliseconds", "logits of other tokens")
    for row in rows:
        if "median" in row:
            equal = {True: "equal", False: "**different**", None: ""}[row.get("equal")]
            yield _line(row["precision"], row["form"], row["sequence"], _span(row), equal)
    yield from _not_run(rows)


def _span(row: Row) -> str:
    return f"{row['median']:.3g} ({row['low']:.3g}–{row['high']:.3g})"


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:.0f}"


def _head(*titles: str) -> Iterator[str]:
    yield _line(*titles)
    yield "|---" * len(titles) + "|"


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:.1e}"


PARTS: dict[str, tuple[str, Callable[[list[Row]], Iterator[str]]]] = {
    "verdicts": ("Verdicts", _verdicts),
    "faults": ("Planted faults", _faults),
    "device_faults": ("Faults of the device", _device_faults),
    "refusals": ("Refusals", _refusals),
    "exports": ("Export with parity on the device", _exports),
    "on_device": ("Reference on the device", _on_device),
    "seven_billion": ("7.5 billion weights", _seven_billion),
    "memory": ("Memory", _memory),
    "latency": ("Latency", _latency),
    "serving": ("Compiled and captured passes", _serving),
}
