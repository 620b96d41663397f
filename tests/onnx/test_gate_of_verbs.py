"""A graph that `inspect` refuses is refused by every command that takes graphs, with the same sentence."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from tests.hostile.conftest import faults_of_text
from tieconv.cli import main
from tieconv.errors import StalePlanError
from tieconv.onnx.write import plan as graph_planned

ROOT = Path(__file__).parents[2]
V, H = 400, 64


def tied() -> onnx.ModelProto:
    matrix = np.random.default_rng(0).standard_normal((V, H)).astype("f4")
    nodes = [
        helper.make_node("Gather", ["E", "input_ids"], ["x"]),
        helper.make_node("Transpose", ["E"], ["T"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "T"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", V])],
        [numpy_helper.from_array(matrix, "E")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-400]


def few_numbers(model: onnx.ModelProto) -> None:
    tensor = TensorProto(name="E", data_type=TensorProto.FLOAT, dims=[V, H])
    tensor.float_data.extend([1.0] * 10)
    model.graph.initializer[0].CopyFrom(tensor)


def negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -V


def twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def unknown_place(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../outside.data")


REFUSED = [short, few_numbers, negative, twice, unknown_place]
VERBS = [
    ("inspect", "{graph}"),
    ("check", "{graph}"),
    ("dedup", "{graph}", "-o", "{out}"),
    ("dedup", "{graph}", "--in-place"),
    ("untie", "{graph}", "-o", "{out}"),
    ("untie", "{graph}", "--in-place"),
    ("untie", "{graph}"),
    ("parity", "{graph}", str(ROOT / "fixtures" / "models" / "llama-tied")),
]


def saved(folder: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    model = tied()
    change(model)
    path = folder / "in" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(model.SerializeToString())
    return path


def run(words: tuple[str, ...], graph: Path, out: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, [word.format(graph=graph, out=out) for word in words])
    assert faults_of_text(result.output) == []
    return result.exit_code, result.output


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
@pytest.mark.parametrize("change", REFUSED)
def test_every_verb_refuses_what_inspect_refuses(
    change: Callable[[onnx.ModelProto], None], words: tuple[str, ...], tmp_path: Path
) -> None:
    """Exit 2, the sentence of `inspect`, nothing written."""
    graph = saved(tmp_path, change)
    before = graph.read_bytes()
    code, said = run(words, graph, tmp_path / "out.onnx")
    sentence = run(("inspect", "{graph}"), graph, tmp_path)[1].splitlines()[0]
    assert code == 2 and "unexpected" not in said
    assert sentence.removeprefix("error: ") in said
    assert os.listdir(tmp_path) == ["in"] and graph.read_bytes() == before


def wrong_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("axis", "zero"))


def oldest(model: onnx.ModelProto) -> None:
    model.ir_version = 1
    del model.opset_import[:]


@pytest.mark.parametrize("words", [words for words in VERBS if words[0] in ("dedup", "untie")], ids=" ".join)
def test_what_the_checker_refuses_is_no_fault_of_tieconv(words: tuple[str, ...], tmp_path: Path) -> None:
    """A pass that stumbles over a graph that onnx's checker refuses too blames the graph, with the checker's words."""
    graph = saved(tmp_path, wrong_attribute)
    code, said = run(words, graph, tmp_path / "out.onnx")
    assert code == 2 and "model.onnx: node 0 (Gather) has the attribute axis of another type" in said


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_an_old_graph_without_opset(words: tuple[str, ...], tmp_path: Path) -> None:
    """IR version 1 imports no operators by version: an answer, or a refusal in a sentence."""
    graph = saved(tmp_path, oldest)
    code, said = run(words, graph, tmp_path / "out.onnx")
    assert code in (0, 1, 2) and "unexpected" not in said and "bug in tieconv" not in said


BROKEN = {
    "forward": {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0],
                                    "long_factor": [1.0, 2.0, 3.0]}},
    "load": {"num_attention_heads": 0},
}  # fmt: skip


@pytest.mark.parametrize("words", [("export", "{model}", "-o", "{out}"), ("analyze", "{model}", "--text", "{text}")])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_config_that_its_own_class_fails_with(broken: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """One sentence that names the config, the class and the error; nothing is written."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "fixtures" / "models" / "llama-untied", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | BROKEN[broken]))
    (tmp_path / "text").write_text("a b c " * 50)
    given = {"model": model, "out": tmp_path / "out", "text": tmp_path / "text"}
    result = CliRunner().invoke(main, [word.format(**given) for word in words])
    assert "unexpected" not in result.output and "bug in tieconv" not in result.output
    assert not (tmp_path / "out").exists()
    if words[0] == "export":
        assert result.exit_code == 2
        error = next(line for line in result.stderr.splitlines() if line.startswith("error: "))
        assert str(model) in error and ("LlamaForCausalLM" in error or "transformers cannot read" in error)


@pytest.mark.parametrize("value", [{}, [{}], [], [[]], "x", 0, None], ids=repr)
@pytest.mark.parametrize("verb", ["inspect", "check", "retie", "untie", "dedup", "convert"])
def test_odd_flags_of_an_unknown_class(verb: str, value: object, tmp_path: Path) -> None:
    """A flag may be any JSON value: an answer, or a refusal in a sentence."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "fixtures" / "models" / "llama-duplicated", model)
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["FooForCausalLM"], "model_type": "foo", "tie_word_embeddings": value}
    (model / "config.json").write_text(json.dumps(config))
    words = [verb, str(model), *(["--to", "torch"] if verb == "convert" else [])]
    result = CliRunner().invoke(main, words)
    assert result.exit_code in (0, 1, 2) and "unexpected" not in result.output


def test_a_copy_that_changes_after_it_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data written through a mapping while the result is proved: the copies differ by then, and nothing is written."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm: elsewhere the kernel may write a page back, and then notes the time")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="tieconv-test-"))
    try:
        model = tied()
        matrix = numpy_helper.to_array(model.graph.initializer[0])
        del model.graph.node[1]
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(matrix.T), "T"))
        (folder / "in").mkdir()
        graph = folder / "in" / "model.onnx"
        onnx.save(model, graph, save_as_external_data=True, location="data", size_threshold=0)
        with (graph.parent / "data").open("r+b") as stream:
            mapped = mmap.mmap(stream.fileno(), 0)
        mapped[-1] ^= 0  # dirty
        planned, proved = api.plan_graph_dedup(graph.parent), graph_planned.check_written

        def change(*given: object) -> None:
            proved(*given)
            mapped[-1] ^= 0x15

        monkeypatch.setattr(graph_planned, "check_written", change)
        with pytest.raises(StalePlanError, match="another program changed"):
            planned.execute(folder / "out")
        assert os.listdir(folder) == ["in"]
        monkeypatch.undo()
        mapped[-1] ^= 0x15
        assert api.plan_graph_dedup(graph.parent).execute(folder / "out").verified
    finally:
        shutil.rmtree(folder)
