"""`--layout`: the names and documents that each program loads, what it generated, and clear refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tieconv
from tests.cli.run import ok, refused
from tests.lazy import carry_out, export_layouts, ir, ort, transformers
from tests.onnx.conftest import Replay
from tests.onnx.exported import CACHE
from tests.onnx.graphs import copies
from tests.onnx.layouts.families import FAMILIES
from tests.onnx.layouts.measure import FILE, VARIABLES, Program, command, rows_of
from tests.onnx.nodes import model as nodes_model, op, token_ids, value
from tests.slow import fast_only
from tieconv.api.graphs import LAYOUT_NAMES
from tieconv.checkpoint.graph_plan import HeadForm

COMPANIONS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "LICENSE"}
PATHS = {
    "plain": ("model.onnx", "model.onnx.data"),
    "optimum": ("model.onnx", "model.onnx_data"),
    "genai": ("model.onnx", "model.onnx.data"),
    "transformers.js": ("onnx/model.onnx", "onnx/model.onnx_data"),
}


def source_of(model: Path, tmp_path: Path) -> Path:
    """The model with the other files that a release has, and a config of an earlier conversion."""
    source = shutil.copytree(model, tmp_path / "model")
    for name in COMPANIONS - {"config.json", "generation_config.json"}:
        (source / name).write_text("{}")
    (source / "genai_config.json").write_text("of another conversion")
    return source


def embedding(source: Path) -> Any:
    from safetensors.numpy import load_file

    return load_file(source / "model.safetensors")["model.embed_tokens.weight"]


def test_the_words_are_the_layouts() -> None:
    """The option, the library and the registry have the same layouts."""
    assert tuple(export_layouts.LAYOUTS) == LAYOUT_NAMES == tuple(PATHS)
    assert f"[{'|'.join(LAYOUT_NAMES)}]" in ok("export --help").stdout
    with pytest.raises(ValueError, match=r"layout 'onnx' is not one of plain, optimum, genai, transformers\.js"):
        tieconv.plan_export("x", layout="onnx")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_files_and_names(replay: Replay, tmp_path: Path, layout: str) -> None:
    """Each file where the program looks for it, each cache tensor by its name, the matrix stored once."""
    made = replay("llama")
    source = source_of(made.model, tmp_path)
    out = tmp_path / "out"
    found = json.loads(ok("export --no-parity --json --layout", layout, source, "-o", out).stdout)
    graph, data = PATHS[layout]
    assert found["layout"] == layout
    assert set(found["files"]) == {graph, data}
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written == {*COMPANIONS, "genai_config.json", "export.json", graph, data}
    for name in COMPANIONS - ({"config.json"} if layout == "transformers.js" else set()):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    document = json.loads((out / "export.json").read_text())
    assert document["tieconv"]["layout"] == layout
    assert ("components" in document) == (layout == "plain")

    assert len(copies(out / graph, embedding(source))) == 1
    session = ort.InferenceSession(out / graph, providers=["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]
    outputs = [entry.name for entry in session.get_outputs()]
    tokens = ["input_ids", "attention_mask", "position_ids"]
    parts = [(layer, part) for layer in (0, 1) for part in ("key", "value")]
    if layout == "plain":
        assert inputs == tokens + [f"input.{CACHE}.layers.{layer}.{part}s" for layer, part in parts]
    else:
        assert inputs == tokens + [f"past_key_values.{layer}.{part}" for layer, part in parts]
        assert outputs == ["logits"] + [f"present.{layer}.{part}" for layer, part in parts]


@pytest.mark.slow
@pytest.mark.parametrize("layout", fast_only([name for name in LAYOUT_NAMES if name != "plain"], ["optimum"]))
def test_the_renamed_graph_is_measured(replay: Replay, tmp_path: Path, layout: str) -> None:
    """Parity runs the graph with the layout's names, and so does `tieconv parity` on OUT afterwards."""
    made = replay("llama")
    out = tmp_path / "out"
    found = json.loads(ok("export --provider cpu --json --layout", layout, made.model, "-o", out).stdout)
    assert found["parity"]["verdict"] == "passed"
    assert found["session"][0]["copies"] == {"lm_head.weight": 1}
    graph = PATHS[layout][0]
    assert json.loads((out / "parity.json").read_text())["graph"] == graph
    if layout != "optimum":  # half of the time of the only one that is not slow
        assert ok("parity", out / graph, made.model, "--provider", "cpu").exit_code == 0


def test_genai_config(replay: Replay, tmp_path: Path) -> None:
    """The document has the model's sizes and tokens; the generation config wins over the config."""
    source = source_of(replay("llama").model, tmp_path)
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5], "top_k": 7, "do_sample": True}))
    ok("export --no-parity --layout genai", source, "-o", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    model, decoder = document["model"], document["model"]["decoder"]
    assert (model["type"], model["vocab_size"], model["context_length"]) == ("llama", 1021, 128)
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (1, [2, 5], 2)
    assert (decoder["num_attention_heads"], decoder["num_key_value_heads"], decoder["head_size"]) == (4, 2, 8)
    assert (decoder["num_hidden_layers"], decoder["hidden_size"], decoder["filename"]) == (2, 32, "model.onnx")
    search = document["search"]
    assert (search["top_k"], search["do_sample"], search["temperature"]) == (7, True, 1.0)
    assert (search["max_length"], search["past_present_share_buffer"]) == (128, False)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_transformers_js_config(replay: Replay, tmp_path: Path, precision: str) -> None:
    """The config says which graph to load and with which data; its other entries are those of the model."""
    made = replay("llama", "float32" if precision == "fp32" else "float16")
    out = tmp_path / "out"
    ok("export --no-parity --layout transformers.js --precision", precision, made.model, "-o", out)
    stem = "model" if precision == "fp32" else "model_fp16"
    assert {path.name for path in (out / "onnx").iterdir()} == {f"{stem}.onnx", f"{stem}.onnx_data"}
    config = json.loads((out / "config.json").read_text())
    settings = config.pop("transformers.js_config")
    assert config == json.loads((made.model / "config.json").read_text())
    cache = {} if precision == "fp32" else {"kv_cache_dtype": {"fp16": "float16"}}
    assert settings == {"dtype": precision, "use_external_data_format": {f"{stem}.onnx": 1}} | cache
    ort.InferenceSession(out / "onnx" / f"{stem}.onnx", providers=["CPUExecutionProvider"])


QUANTISED = [
    ("optimum", "int4", "fp32", "model.onnx", "model.onnx_data", None),
    ("genai", "int8", "fp32", "model.onnx", "model.onnx.data", None),
    ("transformers.js", "int4", "fp32", "onnx/model_q4.onnx", "onnx/model_q4.onnx_data", "q4"),
    ("transformers.js", "dynamic-int8", "fp32", "onnx/model_quantized.onnx", "onnx/model_quantized.onnx_data", "q8"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("layout", "scheme", "precision", "graph", "data", "dtype"), QUANTISED)
def test_a_quantised_graph_has_the_names_of_its_layout(
    replay: Replay, tmp_path: Path, layout: str, scheme: str, precision: str, graph: str, data: str, dtype: str | None
) -> None:
    """Graph, data and cache tensors have the program's names, and the config has the program's word for the type."""
    made = replay("llama", "float32" if precision == "fp32" else "float16")
    out = tmp_path / "out"
    options = f"--layout {layout} --quantise {scheme} --precision {precision}"
    found = json.loads(ok(f"export --no-parity --json {options}", made.model, "-o", out).stdout)
    assert set(found["files"]) == {graph, data}
    session = ort.InferenceSession(out / graph, providers=["CPUExecutionProvider"])
    assert "past_key_values.1.value" in {entry.name for entry in session.get_inputs()}
    if dtype is not None:
        settings = json.loads((out / "config.json").read_text())["transformers.js_config"]
        assert (settings["dtype"], settings["use_external_data_format"]) == (dtype, {Path(graph).name: 1})
        assert settings.get("kv_cache_dtype") == ({dtype: "float16"} if precision == "fp16" else None)


def test_data_that_is_written_anew_keeps_its_name(tmp_path: Path) -> None:
    """If sharing drops a stored copy, the smaller data file has the name of the layout."""
    matrix = np.random.default_rng(0).normal(size=(256, 16)).astype("f4")
    raw = tmp_path / "raw"
    raw.mkdir()
    nodes = [op("Gather", "table input_ids", "hidden"), op("MatMul", "hidden turned", "logits")]
    weights = {"table": matrix, "turned": np.ascontiguousarray(matrix.T)}
    model = nodes_model(nodes, [token_ids()], [value("logits", ["b", "s", 256])], weights)
    onnx.save(model, raw / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    carry_out.share(raw, tmp_path / "new", HeadForm.GEMM)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"model.onnx", "model.onnx_data"}
    assert (tmp_path / "new" / "model.onnx_data").stat().st_size < 1.5 * matrix.nbytes
    (table,) = copies(tmp_path / "new" / "model.onnx", matrix)
    assert ir.load(tmp_path / "new" / "model.onnx").graph.initializers[table].const_value is not None


BASE: dict[str, Any] = {
    "vocab_size": 88, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "tie_word_embeddings": True,
}  # fmt: skip
GROUPED = BASE | {"num_key_value_heads": 2}
FED, HAS = "feeds {} a cache of {} heads (width {})", "but the model has {} heads (width {})"
KIND = "this kind of graph (masked language model)"
REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "optimum-heads": (
        "Phi3",
        GROUPED | {"pad_token_id": 0},
        "optimum",
        f"{FED.format('phi3', 4, 8)}, {HAS.format(2, 8)}",
    ),
    "optimum-width": (
        "Qwen3",
        GROUPED | {"head_dim": 16},
        "optimum",
        f"{FED.format('qwen3', 2, 8)}, {HAS.format(2, 16)}",
    ),
    "optimum-bloom": (
        "Bloom",
        {"vocab_size": 88, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "optimum",
        "optimum-onnx 0.1.0 feeds bloom a cache of another form",
    ),
    "optimum-bf16": ("Llama", GROUPED, "optimum --precision bf16", "the layout optimum does not support bf16"),
    "genai-type": ("Cohere", GROUPED, "genai", "onnxruntime-genai 0.18.0 has no model type for cohere"),
    "genai-gpt2": (
        "GPT2",
        {"vocab_size": 88, "n_embd": 32, "n_layer": 2, "n_head": 4},
        "genai",
        "onnxruntime-genai 0.18.0 reads a layer's keys and values of gpt2 from one tensor",
    ),
    "genai-bert": ("Bert", BASE, "genai", f"the layout genai does not support {KIND}"),
    "js-type": ("Mixtral", GROUPED, "transformers.js", "does not support the model type mixtral"),
    "js-heads": ("StableLm", GROUPED, "transformers.js", f"{FED.format('stablelm', 4, 8)}, {HAS.format(2, 8)}"),
    "js-int8": (
        "Llama",
        GROUPED,
        "transformers.js --quantise int8 --precision fp16",
        "the layout transformers.js was tried with quantised graphs in fp32 only",
    ),
    "js-bf16": (
        "Llama",
        GROUPED,
        "transformers.js --precision bf16",
        "the layout transformers.js does not support bf16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """One sentence with the class and the reason, as a plan and with OUT; the model is not loaded."""
    prefix, entries, layout, why = REFUSED[case]
    cls = {"Bert": "BertForMaskedLM", "GPT2": "GPT2LMHeadModel"}.get(prefix, f"{prefix}ForCausalLM")
    getattr(transformers, cls)(getattr(transformers, f"{prefix}Config")(**entries)).save_pretrained(tmp_path / "model")
    monkeypatch.setattr(carry_out, "load", None)
    for out in ((), ("-o", tmp_path / "out")):
        sentence = refused(f"export --layout {layout}", tmp_path / "model", *out)
        assert f"{cls}: " in sentence
        assert why in sentence
    assert not (tmp_path / "out").exists()


TRIED = {
    "optimum": ["llama", "gpt2", "whisper"],
    "genai": ["llama", "gemma2"],
    "transformers.js": ["llama", "bert", "whisper"],
}
"""Families that the slow test generates with. The committed figures have them all."""


def test_what_is_committed() -> None:
    """Each program gave torch's tokens for eight families or more, with one matrix in a session."""
    measured = json.loads(FILE.read_text(encoding="utf-8"))
    assert set(measured["versions"]) == set(VARIABLES)
    floats = [row for row in measured["rows"] if "quantise" not in row]
    for layout in VARIABLES:
        rows = [row for row in floats if (row["layout"], row["precision"]) == (layout, "fp32")]
        assert {row["family"] for row in rows} <= set(FAMILIES)
        run = [row for row in rows if "refused" not in row]
        assert all(row.get("same") and row["session"] == 1 for row in run), layout
        assert len(run) >= 8, layout
        assert all(row["tokens"] >= 40 for row in run), layout
    half = [row for row in floats if row["precision"] == "fp16" and "refused" not in row]
    assert {row["layout"] for row in half} == set(VARIABLES)
    assert all(row["same"] and row["session"] == 1 for row in half)


def test_quantised_graphs_that_are_committed() -> None:
    """Each program gave the tokens of the graph for three families or more, in each scheme."""
    rows = [row for row in json.loads(FILE.read_text(encoding="utf-8"))["rows"] if "quantise" in row]
    assert all(row["same"] and row["tokens"] >= 40 for row in rows if "refused" not in row)
    for layout in VARIABLES:
        for scheme in ("int4", "int8", "dynamic-int8"):
            chosen = [row for row in rows if (row["layout"], row["quantise"]) == (layout, scheme)]
            assert len([row for row in chosen if row.get("same")]) >= 3, (layout, scheme)


@pytest.mark.slow
@pytest.mark.parametrize("layout", VARIABLES)
def test_programs(tmp_path: Path, layout: str) -> None:
    """The program loads the layout and generates torch's tokens."""
    if not command(layout):
        pytest.skip(f"{VARIABLES[layout]} does not name an installed program: see tests/onnx/layouts/measure.py")
    program = Program(layout)
    for family in TRIED[layout]:
        (row,) = rows_of(family, {layout: program}, tmp_path / family)
        assert row.get("same"), row
        assert row["session"] == 1
    program.close()
