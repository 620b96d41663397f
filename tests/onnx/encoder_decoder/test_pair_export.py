"""`tieconv export` of an encoder-decoder: two graphs, caches of both attentions, one tied matrix for all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest

import tieconv
from tests.cli.run import ok, refused
from tests.onnx.encoder_decoder.conftest import Pairs
from tests.onnx.encoder_decoder.stored_pair import stored_pair
from tests.slow import fast_only
from tieconv.checkpoint.results.parity import Verdict
from tieconv.onnx.export import carry_out

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

GRAPHS = ("encoder_model.onnx", "decoder_model_merged.onnx")
SIDES = [f"{layer}.{side}.{part}" for layer in (0, 1) for side in ("decoder", "encoder") for part in ("key", "value")]


def ranges(graph: Path, name: str) -> tuple[str, str, str]:
    """The data file, the offset and the length of an initializer."""
    model = onnx.load(graph, load_external_data=False)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name.endswith(name)]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries["location"], entries["offset"], entries["length"]


def test_two_graphs_and_one_data_file(pairs: Pairs) -> None:
    """The encoder, and one decoder for the first tokens and for later steps; both read one byte range for words."""
    made = pairs("t5")
    written = {path.name for path in made.graph.iterdir()}
    assert written == {*GRAPHS, "model.onnx.data", "config.json", "generation_config.json", "export.json"}
    encoder, decoder = (ort.InferenceSession(made.graph / name, providers=["CPUExecutionProvider"]) for name in GRAPHS)
    assert [entry.name for entry in encoder.get_inputs()] == ["input_ids", "attention_mask"]
    assert [entry.name for entry in encoder.get_outputs()] == ["last_hidden_state"]
    assert [entry.name for entry in decoder.get_inputs()] == [
        "input_ids", "encoder_attention_mask", "encoder_hidden_states",
        *(f"past_key_values.{side}" for side in SIDES), "use_cache_branch",
    ]  # fmt: skip
    assert [entry.name for entry in decoder.get_outputs()] == ["logits", *(f"present.{side}" for side in SIDES)]
    places = {
        ranges(made.graph / GRAPHS[0], "encoder.embed_tokens.weight"),
        ranges(made.graph / GRAPHS[1], "lm_head.weight"),
    }
    assert len(places) == 1
    assert places.pop()[0] == "model.onnx.data"


def test_export_json_names_each_graph(pairs: Pairs) -> None:
    """The document lists the inputs of both graphs, the bytes of all files, and that the words are stored once."""
    document = json.loads((pairs("t5").graph / "export.json").read_text())
    section = document["tieconv"]
    assert section["kind"] == "encoder-decoder with cache"
    assert {entry["graph"] for entry in section["inputs"]} == set(GRAPHS)
    assert {entry["graph"] for entry in section["outputs"]} == set(GRAPHS)
    assert set(section["files"]) == {*GRAPHS, "model.onnx.data"}
    assert section["weights"]["embedding_stored"] == 1
    assert section["weights"]["found"] == section["weights"]["tensors"]
    assert "components" not in document


def test_the_past_changes_nothing(pairs: Pairs) -> None:
    """The graphs give torch's logits for a padded batch, first in one pass and then token by token."""
    made = pairs("t5")
    model = transformers.T5ForConditionalGeneration.from_pretrained(made.model).eval()
    ids = torch.randint(3, 1000, (3, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 3:] = 0
    tokens = torch.randint(3, 1000, (3, 5), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = model(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens).logits
    encoder, decoder = (ort.InferenceSession(made.graph / name, providers=["CPUExecutionProvider"]) for name in GRAPHS)
    (hidden,) = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    feeds: dict[str, Any] = {"encoder_attention_mask": mask.numpy(), "encoder_hidden_states": hidden}
    feeds |= {f"past_key_values.{side}": torch.zeros(3, 4, 0, 8).numpy() for side in SIDES}
    logits = []
    for start, end in ((0, 2), (2, 4), (4, 5)):
        feeds |= {"input_ids": tokens[:, start:end].numpy(), "use_cache_branch": torch.tensor([start > 0]).numpy()}
        made_logits, *presents = decoder.run(None, feeds)
        feeds |= {f"past_key_values.{side}": value for side, value in zip(SIDES, presents, strict=True)}
        logits.append(torch.from_numpy(made_logits))
    torch.testing.assert_close(torch.cat(logits, 1), want, rtol=1e-4, atol=1e-4)


FILES = {
    "optimum": {*GRAPHS, "model.onnx_data"},
    "transformers.js": {f"onnx/{name}{end}" for name in GRAPHS for end in ("", "_data")},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", FILES)
def test_layouts(pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """optimum gets one data file, transformers.js one a graph; parity measures the set as one model."""
    made = pairs("t5")
    monkeypatch.setattr(carry_out, "trace_pair", stored_pair(made.graph))
    out = tmp_path / "out"
    result = tieconv.export(made.model, out, layout=layout, provider="cpu")
    assert set(result.files) == FILES[layout]
    assert all((out / name).is_file() for name in FILES[layout])
    assert result.parity is not None
    assert result.parity.verdict is Verdict.PASSED
    assert result.parity.structure is not None
    assert result.parity.structure.kind == "encoder-decoder with cache"
    if layout == "transformers.js":
        settings = json.loads((out / "config.json").read_text())["transformers.js_config"]
        assert settings["use_external_data_format"] == dict.fromkeys(GRAPHS, 1)
        session = ort.InferenceSession(out / "onnx" / GRAPHS[1], providers=["CPUExecutionProvider"])
        caches = [entry.shape for entry in session.get_inputs() if entry.name.startswith("past_key_values.")]
        # transformers.js makes the empty caches with these axes, and knows only the name batch_size.
        assert {(shape[0], shape[1], shape[3]) for shape in caches} == {("batch_size", 4, 8)}
    assert ok("parity", out, made.model, "--provider", "cpu").exit_code == 0


def test_genai_refuses(models: Path) -> None:
    """onnxruntime-genai loads no such pair: the sentence names the class and the kind."""
    sentence = refused("export --layout genai", models / "t5")
    assert "T5ForConditionalGeneration: the layout genai does not support this kind of graph" in sentence
    assert "(encoder-decoder with cache)" in sentence


@pytest.mark.parametrize("parity", fast_only([False, True], [False]))
def test_a_cache_of_another_width(pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parity: bool) -> None:
    """optimum feeds an empty cache of hidden size / heads: a graph with another width leaves it open."""
    made = pairs("t5")
    source = shutil.copytree(made.model, tmp_path / "model")
    monkeypatch.setattr(carry_out, "trace_pair", stored_pair(made.graph))
    monkeypatch.setattr("tieconv.onnx.export.layouts.Optimum.cache_shape", lambda *_: (4, 9))
    result = tieconv.export(source, tmp_path / "out", layout="optimum", provider="cpu", parity=parity)
    assert result.executed and (result.parity is not None) == parity
    session = ort.InferenceSession(tmp_path / "out" / GRAPHS[1], providers=["CPUExecutionProvider"])
    shapes = [entry.shape for entry in session.get_inputs() if entry.name.startswith("past_key_values.")]
    assert {(shape[1], shape[3]) for shape in shapes} == {("heads", "width")}


def test_other_verbs(pairs: Pairs, tmp_path: Path) -> None:
    """`inspect`, `check` and `dedup` work on the directory: nothing is stored twice."""
    made = pairs("t5")
    assert ok("inspect", made.graph).exit_code == 0
    assert ok("check", made.graph).exit_code == 0
    plan = json.loads(ok("dedup --json", made.graph, "-o", tmp_path / "out").stdout)
    assert plan["executed"]
    size = sum(path.stat().st_size for path in made.graph.glob("*.data"))
    assert sum(path.stat().st_size for path in (tmp_path / "out").glob("*.data")) == size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "mt5", "m2m100", "marian"])
def test_families(tmp_path: Path, name: str) -> None:
    """Further classes export and pass parity."""
    from tests.onnx.layouts.measure import make

    make(name).save_pretrained(tmp_path / "model")
    result = tieconv.export(tmp_path / "model", tmp_path / "out", provider="cpu")
    assert result.parity is not None
    assert result.parity.verdict is Verdict.PASSED
    assert result.parity.identity is not None
    assert result.parity.identity.copies == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "provider"), [("t5", "cpu"), ("bart", "cuda"), ("whisper", "cuda")])
def test_fused_operators(tmp_path: Path, name: str, provider: str) -> None:
    """Both graphs are fused, parity passes, the head reads the embedding's matrix, and a session holds it once."""
    from tests.onnx.export_table import optimised
    from tests.onnx.layouts.measure import make

    model = make(name)
    model.save_pretrained(tmp_path / "model")
    result = tieconv.export(tmp_path / "model", tmp_path / "out", fuse=provider, provider="cpu")
    assert result.parity is not None
    assert result.parity.verdict is Verdict.PASSED
    for name_of_file in GRAPHS:
        graph = onnx.load(tmp_path / "out" / name_of_file, load_external_data=False).graph
        assert any(node.domain == "com.microsoft" for node in graph.node), name_of_file
    (words,) = [tensor.name for tensor in graph.initializer if list(tensor.dims) == [1021, 32]]
    (head,) = [node for node in graph.node if node.op_type != "Gather" and words in node.input]
    assert head.op_type == "FusedMatMul"
    assert optimised(tmp_path / "out" / GRAPHS[1], model.get_input_embeddings().weight.detach().numpy()) == 1
