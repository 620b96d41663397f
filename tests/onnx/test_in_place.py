"""Graphs replaced where they lie: whole before and after, at every moment, and nobody else's bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tieconv as api
from fixtures.onnx_graphs import V, build, transposed
from tests.cli.run import ok, refused
from tests.onnx.sessions import SHAPES, outputs, same_bits
from tests.onnx.stored import copies, disk
from tieconv.execute import publish
from tieconv.execute.target import staging_path
from tieconv.onnx.write import write as graph_in_place
from tieconv.text import size


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = build("transposed", tmp_path / "in" / "model.onnx")
    (path.parent / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return path


MATRIX = transposed().tensors["model.embed_tokens.weight"]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("whole", [True, False])
def test_replaced(graph: Path, tmp_path: Path, whole: bool) -> None:
    """The same outputs, one copy, no more files than before, and nothing of the old graph left."""
    old = shutil.copytree(graph.parent, tmp_path / "old")
    before = disk(graph.parent)
    ok("dedup --in-place", graph.parent if whole else graph)
    assert len(copies(graph, MATRIX)) == 1
    assert len(names(graph.parent)) == 3 and disk(graph.parent) < before - MATRIX.nbytes + 4096
    for shape in SHAPES:
        assert same_bits(outputs(old / "model.onnx", shape, V), outputs(graph, shape, V))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("whole", [True, False])
def test_twice(graph: Path, whole: bool) -> None:
    """Where there is nothing to do nothing is written; untie and dedup take turns."""
    target = graph.parent if whole else graph
    ok("dedup --in-place", target)
    once = {path.name: path.stat().st_mtime_ns for path in graph.parent.iterdir()}
    ok("dedup --in-place", target)
    assert {path.name: path.stat().st_mtime_ns for path in graph.parent.iterdir()} == once
    ok("untie --in-place", target)
    assert len(copies(graph, MATRIX)) == 2
    ok("dedup --in-place", target)
    assert len(copies(graph, MATRIX)) == 1 and len(names(graph.parent)) == 3


def test_the_plan_of_untie_says_what_is_kept(graph: Path) -> None:
    """The bytes beside the matrix that stays are its own, without the copy that is added."""
    ok("dedup --in-place", graph.parent)
    lines = ok("untie", graph.parent).stdout.splitlines()
    (kept,) = [line for line in lines if line.startswith("  keep")]
    assert f" {size(MATRIX.nbytes)}," in kept


def test_the_rest_of_the_directory_stays(graph: Path) -> None:
    """Hidden files, folders and links that are none of the model's come along as they are."""
    (graph.parent / ".git").mkdir()
    (graph.parent / ".git" / "HEAD").write_text("ref")
    (graph.parent / "link").symlink_to("config.json")
    inode = (graph.parent / "config.json").stat().st_ino
    ok("dedup --in-place", graph.parent)
    assert (graph.parent / ".git" / "HEAD").read_text() == "ref"
    assert os.readlink(graph.parent / "link") == "config.json"
    assert (graph.parent / "config.json").stat().st_ino == inode
    assert (graph.parent / "model.onnx.data").stat().st_nlink == 1


def test_inline(tmp_path: Path) -> None:
    """A graph that holds its weights in itself is one exchange."""
    graph = build("transposed", tmp_path / "model.onnx", external=False)
    ok("dedup --in-place", graph)
    assert len(copies(graph, MATRIX)) == 1 and names(tmp_path) == {"model.onnx"}


def test_data_that_another_graph_reads(graph: Path) -> None:
    """One of two graphs on one data file cannot be replaced alone; the directory can."""
    shutil.copy(graph, graph.with_name("decode.onnx"))
    before = {name: (graph.parent / name).read_bytes() for name in names(graph.parent)}
    assert "decode.onnx reads model.onnx.data too" in refused("dedup --in-place", graph)
    assert {name: (graph.parent / name).read_bytes() for name in names(graph.parent)} == before
    ok("dedup --in-place", graph.parent)
    assert all(len(copies(graph.with_name(name), MATRIX)) == 1 for name in ("model.onnx", "decode.onnx"))


def test_a_graph_beside_it_that_cannot_be_read(graph: Path) -> None:
    """It may read the same data, so nothing is removed."""
    graph.with_name("broken.onnx").write_bytes(b"\xff" * 40)
    assert "cannot read broken.onnx" in refused("dedup --in-place", graph)
    assert len(copies(graph, MATRIX)) == 2


def test_data_in_a_file_of_another_format(graph: Path) -> None:
    """A safetensors file may hold more than what the graph reads of it: it is not removed."""
    import onnx

    model = onnx.load(graph, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "all.safetensors"
    graph.write_bytes(model.SerializeToString())
    graph.with_name("model.onnx.data").rename(graph.with_name("all.safetensors"))
    assert "does not remove all.safetensors, because it may hold more" in refused("dedup --in-place", graph)
    assert graph.with_name("all.safetensors").exists()


def test_linked_graph(graph: Path) -> None:
    """A graph that is a link would leave its target behind."""
    graph.rename(graph.with_name("real"))
    graph.symlink_to("real")
    assert "link" in refused("dedup --in-place", graph.parent)


def test_graph_that_cannot_follow(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the graph cannot get its name the new data goes again, and the old graph stands."""
    before = names(graph.parent)

    def full(staged: Path, final: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(graph_in_place.swap, "publish_file", full)
    refused("dedup --in-place", graph, after_plan=True)
    assert names(graph.parent) == before and len(copies(graph, MATRIX)) == 2


# --- killed ----------------------------------------------------------------------------------------------

STOPS = ("publish_new", "publish_file", "unlink")
"""What replacing a lone graph does in this order: data, graph, old data."""

DRIVER = """
import os, signal, sys
from pathlib import Path
import tieconv as api
from tieconv.onnx.write import write as graph_in_place
target, stop = sys.argv[1:]
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
unlink = Path.unlink
if stop == "unlink":
    old = Path(target).with_name("model.onnx.data")
    Path.unlink = lambda path, **how: killed() if path == old else unlink(path, **how)
elif stop:
    setattr(graph_in_place.swap, stop, killed)
api.plan_graph_dedup(target).execute(in_place=True)
"""


def start(target: Path, stop: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(target), stop], stderr=subprocess.PIPE)


def settled(graph: Path, target: Path) -> None:
    """The graph that has the name runs; the next run leaves one copy and no strays beside the model."""
    expected = outputs(graph, (2, 3), V)
    ok("dedup --in-place", target)
    assert len(copies(graph, MATRIX)) == 1
    assert same_bits(outputs(graph, (2, 3), V), expected)
    assert not os.path.lexists(staging_path(target))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [STOPS[0], *(pytest.param(stop, marks=pytest.mark.slow) for stop in STOPS[1:])])
def test_killed_between_two_names(graph: Path, stop: str) -> None:
    """Before the data has its name, before the graph has, before the old data goes: the graph finds its data."""
    process = start(graph, stop)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(copies(graph, MATRIX)) == (1 if stop == "unlink" else 2)
    settled(graph, graph)
    if stop != "unlink":  # else the old data stays behind, which no graph reads
        assert len(names(graph.parent)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_killed_at_random(graph: Path, tmp_path: Path, whole: bool) -> None:
    """At a few moments while a staging directory is there."""
    chance = random.Random(11)
    pristine = shutil.copytree(graph.parent, tmp_path / "pristine")
    target = graph.parent if whole else graph
    for _ in range(4):
        shutil.rmtree(graph.parent)
        shutil.copytree(pristine, graph.parent)
        process = start(target)
        while not os.path.lexists(staging_path(target)) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        settled(graph, target)


def test_no_exchange(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system cannot exchange directories, one is not replaced in several steps."""
    monkeypatch.setattr(publish, "can_exchange", lambda directory: False)
    assert "this file system cannot replace" in refused("dedup --in-place", graph.parent, after_plan=True)
    assert len(copies(graph, MATRIX)) == 2


def test_python(graph: Path) -> None:
    """The same from Python: the outcome names what was replaced."""
    outcome = api.plan_graph_dedup(graph).execute(in_place=True)
    assert outcome.executed and outcome.output == str(graph)
