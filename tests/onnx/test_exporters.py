"""Graphs that exporters write today, and optimisers that run over what the pass wrote."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tieconv as api
from fixtures.onnx_graphs import SHARED, V, build
from tests.onnx.graphs import SHAPES, copies, disk, outputs, same_bits
from tests.slow import fast_only

torch = pytest.importorskip("torch")
SIZE, WIDTH = 300, 32


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn of their own internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def llama(*, parameters: int):
    """A tied model; with two ``parameters`` its tie is one of values only, as after a careless load."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).eval()
    if parameters == 2:
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.data.clone())
    return model


def by_torch(model, directory: Path) -> None:
    ids, (batch, sequence) = torch.randint(0, SIZE, (2, 5)), (torch.export.Dim("batch"), torch.export.Dim("sequence"))
    torch.onnx.export(
        model,
        (ids,),
        str(directory / "model.onnx"),
        dynamo=True,
        dynamic_shapes=({0: batch, 1: sequence},),
        input_names=["input_ids"],
        verbose=False,
        external_data=True,
    )


def by_transformers(model, directory: Path) -> None:
    from transformers.exporters import OnnxExporter
    from transformers.exporters.exporter_onnx import OnnxConfig

    ids = torch.randint(0, SIZE, (2, 5))
    OnnxExporter().export(model, {"input_ids": ids}, OnnxConfig(dynamic=True)).save_pretrained(str(directory))


@pytest.mark.parametrize("parameters", [1, 2])
@pytest.mark.parametrize("exporter", fast_only([by_torch, by_transformers], [by_transformers]))
def test_exported(tmp_path: Path, exporter, parameters: int) -> None:
    """A session of an export holds the tied matrix twice; after dedup it holds it once, and gives the same bits."""
    model = llama(parameters=parameters)
    (tmp_path / "in").mkdir()
    with quiet():
        exporter(model, tmp_path / "in")
    weight = model.model.embed_tokens.weight.detach().numpy()
    source = tmp_path / "in" / "model.onnx"
    assert len(copies(source, weight)) == parameters
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    (matrix,) = outcome.plan.matrices
    assert (matrix.held_before, matrix.held_after) == (2 * weight.nbytes, weight.nbytes)
    assert [times for _, times in outcome.proofs[0].copies] == [1]
    assert len(copies(tmp_path / "out/model.onnx", weight)) == 1
    for shape in SHAPES:
        assert same_bits(outputs(source, shape, SIZE), outputs(tmp_path / "out/model.onnx", shape, SIZE))
    before, after = (described(path) for path in (source, tmp_path / "out/model.onnx"))
    nodes = onnx.load(source, load_external_data=False).graph.node
    turned = {name for node in nodes if node.op_type == "Transpose" for name in node.output}
    assert {name for name in before if before[name] != after.get(name)} <= {*matrix.dropped, *turned}
    assert {name.rsplit("/", 1)[-1] for name in after.keys() - before.keys()} == {"Reshape", "Gemm", "Shape", "Concat"}


def described(path: Path) -> dict[str, bytes]:
    """Type and shape of every value that the graph describes."""
    infos = onnx.load(path, load_external_data=False).graph.value_info
    return {info.name: info.SerializeToString(deterministic=True) for info in infos}


def offline(source: Path, to: Path) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def onnxscript(source: Path, to: Path) -> None:
    from onnxscript import optimizer

    model = onnx.load(source)
    with quiet():
        onnx.save(optimizer.optimize(model), to)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("optimise", [offline, onnxscript])
@pytest.mark.parametrize("name", sorted(set(SHARED) - {"half", "cast_narrow"}))
def test_optimisers_leave_it_shared(tmp_path: Path, name: str, optimise) -> None:
    """What the pass wrote stays one matrix when it is optimised again; what exporters write does not."""
    source = build(name, tmp_path / "in" / "model.onnx", external=False)
    api.plan_graph_dedup(source).execute(tmp_path / "once.onnx")
    optimise(tmp_path / "once.onnx", tmp_path / "again.onnx")
    matrix = next(a for a in SHARED[name]().tensors.values() if a.ndim == 2 and V in a.shape)
    assert len(copies(tmp_path / "again.onnx", matrix)) == 1
    if optimise is offline:
        optimise(source, tmp_path / "untouched.onnx")
        assert len(copies(tmp_path / "untouched.onnx", matrix)) > 1


def test_size_of_a_duplicate(tmp_path: Path) -> None:
    """The file loses the copy, and gains less than two pages for nodes and alignment."""
    source = build("transposed", tmp_path / "in" / "model.onnx")
    api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    copy = SHARED["transposed"]().tensors["onnx::MatMul_447"]
    assert disk(source.parent) - copy.nbytes <= disk(tmp_path / "out") < disk(source.parent) - copy.nbytes + 8192
    assert np.array_equal(copy.T, SHARED["transposed"]().tensors["model.embed_tokens.weight"])
