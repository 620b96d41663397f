"""A faster matcher for onnxscript's rewriter: the same rewrites, and no search that cannot succeed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import onnx
import pytest

from tests.lazy import adapter, adapter as room, ir, rewriter
from tests.onnx import exported


def graph(operators: list[str]) -> ir.Model:
    """Each operator reads the output before it, but a Sigmoid reads what its predecessor reads."""
    source = value = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    nodes, ends = [], []
    for number, operator in enumerate(operators):
        node = ir.node(operator, [source if operator == "Sigmoid" else value])
        source, value = node.inputs[0] or source, node.outputs[0]
        value.name, value.type, value.shape = f"v{number}", source.type, ir.Shape([2])
        nodes.append(node)
        ends.append(value)
    made = ir.Graph([nodes[0].inputs[0]], ends, nodes=nodes, opset_imports={"": 20}, name="g")
    return ir.Model(made, ir_version=10)


def both() -> rewriter.pattern.RewriteRuleSet:
    """Relu and Sigmoid of one value, two outputs, become one Sum and one Mean of it."""

    def before(op, x):  # type: ignore[no-untyped-def]
        return op.Relu(x), op.Sigmoid(x)

    def after(op, x):  # type: ignore[no-untyped-def]
        return op.Sum(x), op.Mean(x)

    return rewriter.pattern.RewriteRuleSet([rewriter.pattern.RewriteRule(before, after)])


def rewritten(operators: list[str], patch: contextlib.AbstractContextManager[None]) -> tuple[int, bytes]:
    model = graph(operators)
    with patch:
        count = both().apply_to_model(model)
    return count, ir.to_proto(model).SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("operators", "want"),
    [
        (["Relu", "Sigmoid"], 1),
        (["Abs", "Relu", "Sigmoid", "Abs"], 1),
        (["Relu", "Sigmoid", "Abs", "Relu", "Sigmoid"], 2),
        (["Sigmoid", "Abs", "Relu"], 0),
        (["Abs", "Neg"], 0),
    ],
)
def test_the_rewrites_are_the_same(operators: list[str], want: int) -> None:
    """A pattern with two outputs is found where it is, and the graph is that of onnxscript's own matcher."""
    with_patch = rewritten(operators, adapter.quick_rewrites())
    assert with_patch == rewritten(operators, contextlib.nullcontext())
    assert with_patch[0] == want


def test_no_combination_is_tried_of_a_node_that_is_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 nodes of which one is a Relu, onnxscript's own matcher tries combinations of all, and this of one."""
    tried: list[str] = []
    original = rewriter._matcher.SimplePatternMatcher._multi_match

    def multi_match(self, candidate, **options):  # type: ignore[no-untyped-def]
        tried.append(candidate[0].op_type)
        return original(self, candidate, **options)

    monkeypatch.setattr(rewriter._matcher.SimplePatternMatcher, "_multi_match", multi_match)
    operators = ["Abs"] * 38 + ["Relu", "Sigmoid"]
    rewritten(operators, adapter.quick_rewrites())
    assert tried == ["Relu"]
    rewritten(operators, contextlib.nullcontext())
    assert tried.count("Abs") == 38


def test_the_matcher_is_put_back_and_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch ends with the export, also after an error; without the matcher that it knows it does nothing."""
    original = rewriter._matcher.SimplePatternMatcher.match
    with pytest.raises(ValueError, match="a failed export"), adapter.quick_rewrites():
        assert rewriter._matcher.SimplePatternMatcher.match is not original
        raise ValueError("a failed export")
    assert rewriter._matcher.SimplePatternMatcher.match is original
    monkeypatch.setattr(room, "_MATCHER", "onnxscript.rewriter.no_such_module")
    with adapter.quick_rewrites():
        assert rewriter._matcher.SimplePatternMatcher.match is original
    monkeypatch.undo()
    monkeypatch.setattr(rewriter._matcher.SimplePatternMatcher, "_match_node", lambda self: True)
    with adapter.quick_rewrites():
        assert rewriter._matcher.SimplePatternMatcher.match is original


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_an_export_is_the_same_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of an export with the faster matcher is that without it, byte for byte."""
    import tieconv

    made = exported.build(name, "float32", tmp_path)
    tieconv.export(made.model, tmp_path / "quick", parity=False)
    monkeypatch.setattr(adapter, "quick_rewrites", contextlib.nullcontext)
    tieconv.export(made.model, tmp_path / "slow", parity=False)
    quick, slow = ((tmp_path / name / "model.onnx").read_bytes() for name in ("quick", "slow"))
    assert quick == slow
    assert onnx.load(tmp_path / "quick" / "model.onnx", load_external_data=False).graph.node
