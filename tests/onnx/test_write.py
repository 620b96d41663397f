"""Graphs are written whole, proved, and then renamed, or nothing is: beside the source, and in its place."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import helper

import tieconv as api
from fixtures.onnx_graphs import SHARED, V, build, transposed
from tests.cli.run import ok, refused, run
from tests.lazy import graph_model, ir, session_proof as graph_proof, write_plan as graph_planned
from tests.onnx import nodes
from tests.onnx.graphs import SHAPES, copies, disk, outputs, same_bits
from tests.schemas import validate
from tieconv.checkpoint.graph_plan import SharedMatrix
from tieconv.errors import RefusedError, StalePlanError, VerificationError
from tieconv.execute import publish
from tieconv.execute.target import staging_path
from tieconv.execute.write import Writer
from tieconv.text import size


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return build("transposed", tmp_path / "in" / "model.onnx")


def test_lone_file(graph: Path, tmp_path: Path) -> None:
    """A graph file becomes a graph file, its data beside it, and runs."""
    result = ok("dedup", graph, "-o", tmp_path / "small.onnx")
    assert "proved: a session of small.onnx holds model.embed_tokens.weight once" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "small.onnx", "small.onnx.data"]
    for shape in SHAPES:
        assert same_bits(outputs(graph, shape, V), outputs(tmp_path / "small.onnx", shape, V))


def test_directory(graph: Path, tmp_path: Path) -> None:
    """A directory becomes a directory, with all that lies in it."""
    (graph.parent / "config.json").write_text("{}")
    (graph.parent / "sub").mkdir()
    (graph.parent / "sub" / "notes").write_text("x")
    ok("dedup", graph.parent, "-o", tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == {"config.json", "model.onnx", "model.onnx.data", "sub", "sub/notes"}


def test_copied_files_are_compared(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the directory that arrives with other bytes stops the write."""
    (graph.parent / "config.json").write_text("{}")
    companion = Writer.companion

    def damaged(writer: Writer, name: str) -> None:
        companion(writer, name)
        (writer.new / name).write_text("[]")

    monkeypatch.setattr(Writer, "companion", damaged)
    said = refused("dedup", graph.parent, "-o", tmp_path / "out", after_plan=True)
    assert "written config.json differs from its source at byte 0" in said


def test_two_graphs_on_one_data_file(graph: Path, tmp_path: Path) -> None:
    """Regions that two graphs share are written once, and both graphs follow them."""
    shutil.copy(graph, graph.with_name("decode.onnx"))
    weight = transposed().tensors["model.embed_tokens.weight"]
    outcome = api.plan_graph_dedup(graph.parent).execute(tmp_path / "out")
    assert len(outcome.proofs) == 2
    for name in ("model.onnx", "decode.onnx"):
        assert len(copies(tmp_path / "out" / name, weight)) == 1
        assert same_bits(outputs(graph, (2, 3), V), outputs(tmp_path / "out" / name, (2, 3), V))
    assert disk(tmp_path / "out") == outcome.plan.bytes_after < disk(graph.parent) - weight.nbytes + 4096


def test_unchanged_graph_follows_its_data(graph: Path, tmp_path: Path) -> None:
    """A graph in which nothing is twice, but whose data file loses a region, is pointed to the new places."""
    model = onnx.load(graph, load_external_data=False)
    last = next(t for t in model.graph.initializer if t.name == "mlp.weight")
    lookup, opset = nodes.op("Gather", "mlp.weight input_ids", "y"), model.opset_import[0].version
    other = nodes.model([lookup], [model.graph.input[0]], [nodes.value("y", ["b", "s", 32])], [last], opset=opset)
    graph.with_name("other.onnx").write_bytes(other.SerializeToString())
    plan = api.plan_graph_dedup(graph.parent)
    assert set(plan.plan.changed) == {"model.onnx", "other.onnx"}
    plan.execute(tmp_path / "out")
    ids = (2, 3)
    assert same_bits(*(outputs(d / "other.onnx", ids, 32) for d in (graph.parent, tmp_path / "out")))


def test_without_out_nothing_is_written(graph: Path, tmp_path: Path) -> None:
    """Without -o, and with --dry-run, the plan is printed and nothing written."""
    before = {path: path.read_bytes() for path in graph.parent.iterdir()}
    for line in ("dedup", "dedup --dry-run", "untie", f"dedup --dry-run -o {tmp_path / 'out.onnx'}"):
        assert "nothing was written" in ok(line, graph).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert {path: path.read_bytes() for path in graph.parent.iterdir()} == before


@pytest.mark.parametrize("command", ["dedup", "untie"])
@pytest.mark.parametrize("write", [True, False])
def test_json(graph: Path, tmp_path: Path, command: str, write: bool) -> None:
    """The document is the contract's, with what was proved."""
    more = ["-o", str(tmp_path / "out.onnx")] if write else []
    document = json.loads(ok(f"{command} --json", graph, *more).stdout)
    validate(document, "plan")
    assert document["executed"] == document["verified"] == write
    if command == "dedup":
        assert {"op": "DropTensor", "name": "onnx::MatMul_447", "file": "model.onnx"}.items() <= document["operations"][
            1
        ].items()
        assert [proof["proved"] for proof in document["proofs"]] == [True] * write


def test_a_second_copy_in_the_session_stops_the_write(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the session's own optimised model holds the matrix twice, the command fails and writes nothing."""
    source = build("by_node", tmp_path / "two" / "model.onnx")
    matrix = SharedMatrix("model.onnx", (), "model.embed_tokens.weight", (), ("x",), "", (), 1, 1, 1, 1)
    with pytest.raises(
        VerificationError, match=r"holds 2 copies of model\.embed_tokens\.weight, but the plan promised 1"
    ):
        graph_proof.prove(source.parent, source, "model.onnx", [matrix])
    assert not list(source.parent.glob("*proof*"))

    def fails(*_: object) -> None:
        raise VerificationError("no", "why", "verify.session")

    monkeypatch.setattr(graph_planned, "prove", fails)
    refused("dedup", graph, "-o", tmp_path / "out.onnx", after_plan=True)
    refused("dedup", graph.parent, "-o", tmp_path / "out", after_plan=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "two"]


def test_a_copy_left_on_disk_stops_the_write(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The written graph is searched again: a copy that the pass forgot is found."""
    planned = api.plan_graph_dedup(graph)
    source = api.plan_graph_dedup(build("two_pairs", tmp_path / "other" / "model.onnx"))
    broken = graph_planned.PlannedGraphs(
        "dedup", planned.form, source.listing, (reread(tmp_path / "other"),), source.states, planned.matrices
    )
    with pytest.raises(VerificationError, match="which are one matrix"):
        broken.execute(tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def reread(root: Path):
    from tieconv.onnx.graph_model import read_graph
    from tieconv.sources.local import open_files

    with open_files(root) as files:
        graph = read_graph(str(root), "model.onnx", files)
    graph.changed = True
    return graph


def test_not_proved_is_said(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime the write goes on, and nobody is told that it was proved."""
    monkeypatch.setattr(graph_proof.graph_model, "has_onnxruntime", lambda: False)
    result = ok("dedup", graph, "-o", tmp_path / "out.onnx")
    assert "not proved: out.onnx: onnxruntime is not installed" in result.stdout
    assert "not proved in a session" in result.stderr
    assert "proved: a session" not in result.stdout.replace("not proved", "")


def test_an_operator_that_no_session_knows(graph: Path, tmp_path: Path) -> None:
    """The reason that the runtime gives names the graph, not the temporary file."""
    model = onnx.load(graph, load_external_data=False)
    model.graph.node.append(nodes.op("Acme", model.graph.output[0].name, "z", domain="com.acme"))
    model.graph.output.append(nodes.value("z", ["n"]))
    model.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    onnx.save(model, graph)
    result = ok("dedup", graph, "-o", tmp_path / "out.onnx")
    assert "not proved: out.onnx: onnxruntime" in result.stdout and "com.acme:Acme" in result.stdout
    assert "/proc/" not in result.stdout + result.stderr


def test_stale(graph: Path, tmp_path: Path) -> None:
    """A source that changes after the plan was made stops the write."""
    planned = api.plan_graph_dedup(graph)
    data = graph.with_name("model.onnx.data")
    data.write_bytes(data.read_bytes())
    with pytest.raises(StalePlanError):
        planned.execute(tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_refusals_of_out(graph: Path, tmp_path: Path) -> None:
    """OUT exists, has another ending, lies in the source, or its data's name is taken: refused, nothing written."""
    (tmp_path / "there.onnx").write_bytes(b"x")
    (tmp_path / "taken.onnx.data").write_bytes(b"x")
    assert "exists" in refused("dedup", graph, "-o", tmp_path / "there.onnx")
    assert "does not end in .onnx" in refused("dedup", graph, "-o", tmp_path / "out")
    assert "taken.onnx.data already exists" in refused("dedup", graph, "-o", tmp_path / "taken.onnx")
    assert "inside the model" in refused("dedup", graph.parent, "-o", graph.parent / "out")
    assert "--hardlink" in refused("dedup --hardlink", graph.parent, "-o", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "taken.onnx.data", "there.onnx"]


def test_data_goes_again_where_the_graph_cannot_follow(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that appears at OUT in the last moment stops the write, and no data is left beside it."""
    publish_new = publish.publish_new

    def appears(staged: Path, final: Path) -> None:
        publish_new(staged, final)
        if final.name == "out.onnx.data":
            (tmp_path / "out.onnx").write_bytes(b"x")

    monkeypatch.setattr(publish, "publish_new", appears)
    assert "another program created" in refused("dedup", graph, "-o", tmp_path / "out.onnx", after_plan=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.onnx"]
    assert (tmp_path / "out.onnx").read_bytes() == b"x"


def test_overwrite(graph: Path, tmp_path: Path) -> None:
    """--overwrite replaces a model directory, and a lone graph that holds its own weights."""
    shutil.copytree(graph.parent, tmp_path / "out")
    ok("dedup --overwrite", graph.parent, "-o", tmp_path / "out")
    assert disk(tmp_path / "out") < disk(graph.parent)
    inline = build("transposed", tmp_path / "inline.onnx", external=False)
    shutil.copy(inline, tmp_path / "old.onnx")
    ok("dedup --overwrite", inline, "-o", tmp_path / "old.onnx")
    assert (tmp_path / "old.onnx").stat().st_size < inline.stat().st_size


@pytest.mark.parametrize("command", ["retie", "diff", "reindex", "convert --to torch", "bias zero", "set-tie true"])
def test_other_commands_say_so(graph: Path, command: str) -> None:
    """Every command that does not take graphs says it in a sentence, and which do, for a file and a directory."""
    for target in (graph, graph.parent):
        result = run(command, target, *([target] if command == "diff" else []))
        assert result.exit_code == 2
        assert result.stderr.splitlines() == [
            f"error: {target.name} is an ONNX graph, and this command reads only checkpoints",
            "hint: tieconv inspect, check, dedup and untie read graphs; tieconv parity compares them with checkpoints",
        ]


@pytest.mark.parametrize("line", ["dedup --embed x", "dedup --head x", "untie --keep-flag", "untie --bias zero"])
def test_options_of_other_formats(graph: Path, line: str) -> None:
    """Options that say nothing about a graph are usage errors."""
    result = run(line, graph)
    assert result.exit_code == 2 and "cannot be used with an ONNX graph" in result.stderr


def test_head_form_of_other_formats(models: Path) -> None:
    """--head-form is for graphs."""
    result = run("dedup --head-form fused", sorted(models.iterdir())[0])
    assert result.exit_code == 2 and "--head-form needs an ONNX graph" in result.stderr


SCALED = {"soft_cap", "scale"}
"""Whose Gemm computes more than a product after dedup, and stays."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", sorted({*SHARED, "shared"}))
def test_untie(tmp_path: Path, name: str) -> None:
    """After dedup, untie gives each head a matrix of its own; outputs keep their bits, and dedup finds the copies."""
    source = build(name, tmp_path / "in" / "model.onnx")
    api.plan_graph_dedup(source.parent).execute(tmp_path / "once")
    planned = api.plan_graph_untie(tmp_path / "once")
    planned.execute(tmp_path / "twice")
    out = tmp_path / "twice" / "model.onnx"
    if name != "columns":
        assert all(len(matrix.dropped) == 1 for matrix in planned.plan.matrices) and planned.plan.matrices
        matrix = planned.plan.matrices[0]
        stored = dict(onnx_tensors(out))
        assert np.array_equal(stored[matrix.dropped[0]], stored[matrix.initializer].T)
        operators = {node.op_type for node in onnx.load(out, load_external_data=False).graph.node}
        assert (name in SCALED) == ("Gemm" in operators)
    for shape in SHAPES:
        assert same_bits(outputs(source, shape, V), outputs(out, shape, V))
    again = api.plan_graph_dedup(out.parent).plan
    assert sum(m.stored_after for m in again.matrices) == sum(m.stored_after for m in planned.plan.matrices) // 2


def onnx_tensors(path: Path) -> list[tuple[str, np.ndarray]]:
    return [(t.name, onnx.numpy_helper.to_array(t)) for t in onnx.load(path).graph.initializer]


def test_untie_of_an_untied_graph(tmp_path: Path) -> None:
    """Where no head reads the embedding there is nothing to do, and that is said."""
    result = ok("untie", build("untied", tmp_path / "model.onnx"))
    assert "nothing to change" in result.stdout and "no matrix that both" in result.stdout
    assert "rewrite" not in result.stdout and "on disk" not in result.stdout
    document = json.loads(ok("untie --json", tmp_path / "model.onnx").stdout)
    assert document["graphs"] == [{"name": "model.onnx", "changed": False, "answer": "nothing to change"}]


def test_beyond_what_a_graph_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untied graph with its weights inside that would pass 2 GiB is refused with the way out; nothing is written."""
    source = build("by_node", tmp_path / "in" / "model.onnx", external=False)
    monkeypatch.setattr("tieconv.onnx.write.data_placement.LIMIT", 100)
    with pytest.raises(RefusedError, match="size limit of a graph") as caught:
        api.plan_graph_untie(source).execute(tmp_path / "out.onnx")
    assert "save_as_external_data" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("form", ["transposed", "branches", "constants", "in branches"])
def test_weights_in_the_graph_are_copied_from_file_to_file(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large weights stay on disk; the written graphs have the bytes of a message in memory."""
    made = {"constants": "transposed", "in branches": "branches"}.get(form, form)
    source = build(made, tmp_path / "in" / "model.onnx", external=False)
    model = onnx.load(source)
    weights = model.graph.initializer
    for number, tensor in enumerate(weights):
        tensor.doc_string = f"weight {number}"
    if form == "constants":
        for tensor in weights:
            model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
        del weights[:]
    if form == "in branches":
        branches = [a.g for node in model.graph.node if node.op_type == "If" for a in node.attribute]
        for tensor in list(weights):
            users = [g for g in branches if any(tensor.name in node.input for node in g.node)]
            if users and not any(tensor.name in node.input for node in model.graph.node):
                for branch in users:
                    branch.initializer.append(tensor)
                weights.remove(tensor)
        assert any(branch.initializer for branch in branches)
    onnx.save(model, source)
    written = []
    for name, least in (("memory", 1 << 30), ("disk", 1024)):
        monkeypatch.setattr("tieconv.onnx.graph_model.INLINE", least)
        once, twice = tmp_path / f"{name}.once" / "m.onnx", tmp_path / f"{name}.twice" / "m.onnx"
        once.parent.mkdir()
        twice.parent.mkdir()
        planned = api.plan_graph_dedup(source)
        large = [
            value for _, value in graph_model.initializers(planned.files[0].model) if value.const_value.nbytes > 2000
        ]
        assert large and {isinstance(value.const_value, ir.ExternalTensor) for value in large} == {name == "disk"}
        assert planned.execute(once).verified and api.plan_graph_untie(once).execute(twice).verified
        written.append((once.read_bytes(), twice.read_bytes()))
    assert written[0] == written[1]


@pytest.fixture
def copied_graph(tmp_path: Path) -> Path:
    path = build("transposed", tmp_path / "in" / "model.onnx")
    (path.parent / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return path


MATRIX = transposed().tensors["model.embed_tokens.weight"]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("whole", [True, False])
def test_replaced(copied_graph: Path, tmp_path: Path, whole: bool) -> None:
    """The same outputs, one copy, no more files than before, and nothing of the old graph left."""
    old = shutil.copytree(copied_graph.parent, tmp_path / "old")
    before = disk(copied_graph.parent)
    ok("dedup --in-place", copied_graph.parent if whole else copied_graph)
    assert len(copies(copied_graph, MATRIX)) == 1
    assert len(names(copied_graph.parent)) == 3 and disk(copied_graph.parent) < before - MATRIX.nbytes + 4096
    for shape in SHAPES:
        assert same_bits(outputs(old / "model.onnx", shape, V), outputs(copied_graph, shape, V))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("whole", [True, False])
def test_twice(copied_graph: Path, whole: bool) -> None:
    """Where there is nothing to do nothing is written; untie and dedup take turns."""
    target = copied_graph.parent if whole else copied_graph
    ok("dedup --in-place", target)
    once = {path.name: path.stat().st_mtime_ns for path in copied_graph.parent.iterdir()}
    ok("dedup --in-place", target)
    assert {path.name: path.stat().st_mtime_ns for path in copied_graph.parent.iterdir()} == once
    ok("untie --in-place", target)
    assert len(copies(copied_graph, MATRIX)) == 2
    ok("dedup --in-place", target)
    assert len(copies(copied_graph, MATRIX)) == 1 and len(names(copied_graph.parent)) == 3


def test_the_plan_of_untie_says_what_is_kept(copied_graph: Path) -> None:
    """The bytes beside the matrix that stays are its own, without the copy that is added."""
    ok("dedup --in-place", copied_graph.parent)
    lines = ok("untie", copied_graph.parent).stdout.splitlines()
    (kept,) = [line for line in lines if line.startswith("  keep")]
    assert f" {size(MATRIX.nbytes)}," in kept


def test_the_rest_of_the_directory_stays(copied_graph: Path) -> None:
    """Hidden files, folders and links that are none of the model's come along as they are."""
    (copied_graph.parent / ".git").mkdir()
    (copied_graph.parent / ".git" / "HEAD").write_text("ref")
    (copied_graph.parent / "link").symlink_to("config.json")
    inode = (copied_graph.parent / "config.json").stat().st_ino
    ok("dedup --in-place", copied_graph.parent)
    assert (copied_graph.parent / ".git" / "HEAD").read_text() == "ref"
    assert os.readlink(copied_graph.parent / "link") == "config.json"
    assert (copied_graph.parent / "config.json").stat().st_ino == inode
    assert (copied_graph.parent / "model.onnx.data").stat().st_nlink == 1


def test_inline(tmp_path: Path) -> None:
    """A graph that holds its weights in itself is one exchange."""
    copied_graph = build("transposed", tmp_path / "model.onnx", external=False)
    ok("dedup --in-place", copied_graph)
    assert len(copies(copied_graph, MATRIX)) == 1 and names(tmp_path) == {"model.onnx"}


def test_data_that_another_graph_reads(copied_graph: Path) -> None:
    """One of two graphs on one data file cannot be replaced alone; the directory can."""
    shutil.copy(copied_graph, copied_graph.with_name("decode.onnx"))
    before = {name: (copied_graph.parent / name).read_bytes() for name in names(copied_graph.parent)}
    assert "decode.onnx reads model.onnx.data too" in refused("dedup --in-place", copied_graph)
    assert {name: (copied_graph.parent / name).read_bytes() for name in names(copied_graph.parent)} == before
    ok("dedup --in-place", copied_graph.parent)
    assert all(len(copies(copied_graph.with_name(name), MATRIX)) == 1 for name in ("model.onnx", "decode.onnx"))


def test_a_graph_beside_it_that_cannot_be_read(copied_graph: Path) -> None:
    """It may read the same data, so nothing is removed."""
    copied_graph.with_name("broken.onnx").write_bytes(b"\xff" * 40)
    assert "cannot read broken.onnx" in refused("dedup --in-place", copied_graph)
    assert len(copies(copied_graph, MATRIX)) == 2


def test_data_in_a_file_of_another_format(copied_graph: Path) -> None:
    """A safetensors file may hold more than what the graph reads of it: it is not removed."""
    import onnx

    model = onnx.load(copied_graph, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "all.safetensors"
    copied_graph.write_bytes(model.SerializeToString())
    copied_graph.with_name("model.onnx.data").rename(copied_graph.with_name("all.safetensors"))
    assert "does not remove all.safetensors, because it may hold more" in refused("dedup --in-place", copied_graph)
    assert copied_graph.with_name("all.safetensors").exists()


def test_linked_graph(copied_graph: Path) -> None:
    """A graph that is a link would leave its target behind."""
    copied_graph.rename(copied_graph.with_name("real"))
    copied_graph.symlink_to("real")
    assert "link" in refused("dedup --in-place", copied_graph.parent)


def test_graph_that_cannot_follow(copied_graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the graph cannot get its name the new data goes again, and the old graph stands."""
    before = names(copied_graph.parent)
    monkeypatch.setattr(publish, "publish_file", Mock(side_effect=OSError(28, "No space left on device")))
    refused("dedup --in-place", copied_graph, after_plan=True)
    assert names(copied_graph.parent) == before and len(copies(copied_graph, MATRIX)) == 2


# --- killed ----------------------------------------------------------------------------------------------

STOPS = ("publish_new", "publish_file", "unlink")
"""What replacing a lone graph does in this order: data, graph, old data."""

DRIVER = """
import os, signal, sys
from pathlib import Path
import tieconv as api
from tieconv.execute import publish
target, stop = sys.argv[1:]
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
unlink = Path.unlink
if stop == "unlink":
    old = Path(target).with_name("model.onnx.data")
    Path.unlink = lambda path, **how: killed() if path == old else unlink(path, **how)
elif stop:
    setattr(publish, stop, killed)
api.plan_graph_dedup(target).execute(in_place=True)
"""


def start(target: Path, stop: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(target), stop], stderr=subprocess.PIPE)


def settled(copied_graph: Path, target: Path) -> None:
    """The graph that has the name runs; the next run leaves one copy and no strays beside the model."""
    expected = outputs(copied_graph, (2, 3), V)
    ok("dedup --in-place", target)
    assert len(copies(copied_graph, MATRIX)) == 1
    assert same_bits(outputs(copied_graph, (2, 3), V), expected)
    assert not os.path.lexists(staging_path(target))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [STOPS[0], *(pytest.param(stop, marks=pytest.mark.slow) for stop in STOPS[1:])])
def test_killed_between_two_names(copied_graph: Path, stop: str) -> None:
    """Before the data has its name, before the graph has, before the old data goes: the graph finds its data."""
    process = start(copied_graph, stop)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(copies(copied_graph, MATRIX)) == (1 if stop == "unlink" else 2)
    settled(copied_graph, copied_graph)
    if stop != "unlink":  # else the old data stays behind, which no graph reads
        assert len(names(copied_graph.parent)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_killed_at_random(copied_graph: Path, tmp_path: Path, whole: bool) -> None:
    """At a few moments while a staging directory is there."""
    chance = random.Random(11)
    pristine = shutil.copytree(copied_graph.parent, tmp_path / "pristine")
    target = copied_graph.parent if whole else copied_graph
    for _ in range(4):
        shutil.rmtree(copied_graph.parent)
        shutil.copytree(pristine, copied_graph.parent)
        process = start(target)
        while not os.path.lexists(staging_path(target)) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        settled(copied_graph, target)


def test_no_exchange(copied_graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system cannot exchange directories, one is not replaced in several steps."""
    monkeypatch.setattr(publish, "can_exchange", lambda directory: False)
    assert "this file system cannot replace" in refused("dedup --in-place", copied_graph.parent, after_plan=True)
    assert len(copies(copied_graph, MATRIX)) == 2


def test_python(copied_graph: Path) -> None:
    """The same from Python: the outcome names what was replaced."""
    outcome = api.plan_graph_dedup(copied_graph).execute(in_place=True)
    assert outcome.executed and outcome.output == str(copied_graph)
