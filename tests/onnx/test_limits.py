"""Hostile graphs: external data within its bounds, and a graph that computes for ever ends with one sentence."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures.onnx_graphs import build
from tests.cli.run import refused
from tests.lazy import child
from tests.onnx.nodes import edit_external, op, token_ids, value
from tests.onnx.planted.edit import rename
from tieconv.errors import NotRunError, UnreadableError, UnsafePathError
from tieconv.onnx.parity.graph_file import read_graph

ROOT = Path(__file__).parents[2]
GRAPH = ROOT / "fixtures" / "exported" / "optimum-llama" / "model.onnx"
MODEL = ROOT / "fixtures" / "models" / "llama-tied"


def hostile(folder: Path, kind: str) -> Path:
    """An exported graph whose logits wait for an endless loop, or for the sum of a constant of 9.6 GB."""
    model = onnx.load(GRAPH)
    graph = model.graph
    (logits,) = [value.name for value in graph.output if value.name == "logits"]
    rename(model, logits, "before", inputs=False)
    if kind == "loop":
        inputs = [token_ids("i", []), value("c", [], TensorProto.BOOL), value("v")]
        nodes = [op("Identity", "c", "c2"), op("Identity", "v", "v2")]
        body = helper.make_graph(nodes, "body", inputs, [value("c2", [], TensorProto.BOOL), value("v2")])
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        graph.node.append(op("Loop", "- yes before", logits, name="endless", body=body))
    else:
        graph.initializer.append(numpy_helper.from_array(np.array([60000, 40000], "i8"), "big"))
        graph.node.append(op("ConstantOfShape", "big", "huge", name="huge_constant"))
        graph.node.append(op("ReduceSum", "huge", "sum", keepdims=0))
        graph.node.append(op("Add", "before sum", logits))
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def parity(path: Path, *words: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, with the default handlers of signals."""
    return subprocess.Popen(
        [sys.executable, "-m", "tieconv", "parity", str(path), str(MODEL), *words],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """What the command printed as errors; no process of its group is left."""
    try:
        _, errors = process.communicate(timeout=600)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
            left = True
        except ProcessLookupError:
            left = False
    assert not left
    return errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words", "sentence"),
    [("loop", ("--timeout", "3"), "does not end within 3 s"), ("huge", ("--max-memory", "3"), "of memory")],
)
def test_hostile_graphs(kind: str, words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    process = parity(hostile(tmp_path, kind), *words)
    errors = ended(process)
    assert process.returncode == 2 and sentence in errors, errors


def test_the_limits_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """They grow with what is stored, unless the user gives them; the memory left is the kernel's figure or all."""
    assert child.limits_for(0) == child.Limits(30, 4 << 30)
    assert child.limits_for(1 << 30) == child.Limits(150, 28 << 30)
    assert child.limits_for(1 << 30, 7, 8) == child.Limits(7, 8)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < child.available_memory() < whole

    def refuses(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr("builtins.open", refuses)
    assert child.available_memory() == whole


def limits() -> child.Limits:
    return child.Limits(1.0, 1 << 40)


SCRIPT = """
import os, sys, time
from tieconv.onnx import child
def work():
    with child.session_call("a run"):
        print(os.getpid(), flush=True)
        while True:
            WAIT
child.limited(work, lambda: child.Limits(SECONDS, 1 << 40), "none.onnx")
"""


def script(wait: str, seconds: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("WAIT", wait).replace("SECONDS", seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )  # fmt: skip


def gone(number: int) -> bool:
    """Whether a process has ended; waits for the kernel."""
    for _ in range(600):
        try:
            with open(f"/proc/{number}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="the child and its limits need Linux")
def test_signals_and_limits() -> None:
    """A limit, Ctrl-C, SIGTERM and SIGKILL of the command each end the child, and none is left."""
    for how in ("limit", signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = script("pass", "0.2" if how == "limit" else "1e9")
        assert process.stdout is not None
        number = int(process.stdout.readline())
        if how != "limit":
            process.send_signal(how)
        _, errors = process.communicate(timeout=600)
        assert process.returncode, how
        assert gone(number), how
        if how == "limit":
            assert "a run does not end within 0 s" in errors


WORKERS = """
import sys
import tieconv as api
from tieconv.onnx import child
def endless(path):
    while True: pass
child.refusal, child.limits_for = endless, lambda stored: child.Limits(0.2, 1 << 40)
for model in api.check(sys.argv[1:], jobs=2).models:
    print(*[entry.finding.message for entry in model.findings])
"""


@pytest.mark.skipif(sys.platform != "linux" or sys.version_info >= (3, 14), reason="the workers are forks on Linux")
def test_workers_have_limits(tmp_path: Path) -> None:
    """`check -j` opens a graph in a child with limits too, though a thread of each worker waits for its parent."""
    graphs = [tmp_path / name / "model.onnx" for name in "ab"]
    for graph in graphs:
        graph.parent.mkdir()
        graph.write_bytes(GRAPH.read_bytes())
    lines = subprocess.run(
        [sys.executable, "-c", WORKERS, *map(str, graphs)], check=True, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout.splitlines()  # fmt: skip
    assert len(lines) == 2 and all("opening model.onnx does not end within" in line for line in lines), lines


def test_results_and_errors_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the work returns or raises is as without a child; a child that dies is one sentence."""
    monkeypatch.setattr(child.threading, "enumerate", list)
    for module in ("torch", "onnxruntime"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    if sys.gettrace() or sys.getprofile() or sys.platform != "linux":
        return
    here = os.getpid()
    assert child.limited(lambda: (os.getpid(), {"a": 1})[1], limits, "g") == {"a": 1}
    assert child.limited(os.getpid, limits, "g") != here

    def fails() -> None:
        raise UnreadableError("why", "what next", "some.code")

    with pytest.raises(UnreadableError) as caught:
        child.limited(fails, limits, "g")
    assert (caught.value.message, caught.value.command_hint, caught.value.code) == ("why", "what next", "some.code")
    with pytest.raises(NotRunError, match="ended by signal 9"):
        child.limited(lambda: os.kill(os.getpid(), signal.SIGKILL), limits, "g")


def test_the_parent_hears_how_far_the_child_is() -> None:
    """A program that has not imported torch runs the work in a child, and its progress reaches the parent."""
    script = (
        "from tieconv.onnx.child import Limits, advance, limited, session_call\n"
        "def work():\n"
        "    advance('loading', 0, 1)\n"
        "    with session_call('a run'): advance('running', 3.4, 10)\n"
        "    import time; time.sleep(0.3)\n"
        "    return 7\n"
        "heard = []\n"
        "made = limited(work, lambda: Limits(30, 1 << 40), 'm.onnx', lambda *all: heard.append(all))\n"
        "assert (made, heard) == (7, [('loading', 0, 1), ('running', 3, 10)]), heard\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return build("transposed", tmp_path / "in" / "model.onnx")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "", "..\\secret", "a\0b"])
def test_outside(graph: Path, tmp_path: Path, location: str) -> None:
    """A location that leads out of the directory is refused by name, before anything is opened."""
    shutil.copy(graph.parent / "model.onnx.data", tmp_path / "secret")
    with pytest.raises(UnsafePathError, match=r"model\.embed_tokens\.weight.*outside the model's directory"):
        api.plan_graph_dedup(edit_external(graph, location=location))
    with pytest.raises((UnsafePathError, UnreadableError)):
        read_graph(str(graph))


def link(data: Path) -> None:
    data.rename(data.parent.parent / "elsewhere")
    data.symlink_to("../elsewhere")


def link_inside(data: Path) -> None:
    data.rename(data.with_name("real"))
    data.symlink_to("real")


def hard_link(data: Path) -> None:
    os.link(data, data.parent.parent / "elsewhere")


def linked_directory(data: Path) -> None:
    (data.parent.parent / "real").mkdir()
    data.rename(data.parent.parent / "real" / "data")
    (data.parent / "sub").symlink_to("../real")
    edit_external(data.with_name("model.onnx"), location="sub/data")


@pytest.mark.parametrize("trick", [link, link_inside, hard_link, linked_directory])
def test_linked(graph: Path, trick: Callable[[Path], None]) -> None:
    """A data file that is a link, has another name, or lies behind a linked directory is refused."""
    trick(graph.parent / "model.onnx.data")
    for read in (api.plan_graph_dedup, lambda path: read_graph(str(path))):
        with pytest.raises(UnsafePathError, match=r"model\.embed_tokens\.weight.*(link|names)"):
            read(graph)


def test_fifo(graph: Path) -> None:
    """A FIFO is refused without waiting on it."""
    (graph.parent / "model.onnx.data").unlink()
    os.mkfifo(graph.parent / "model.onnx.data")
    with pytest.raises(UnsafePathError):
        api.plan_graph_dedup(graph)


@pytest.mark.parametrize(
    ("key", "number"),
    [("offset", text) for text in ("99999999", "-1", "٣", "9" * 30)]
    + [("length", text) for text in ("1", "99999999999", "x")],
)
def test_out_of_bounds(graph: Path, key: str, number: str) -> None:
    """Offset and length are numbers that fit the file, the type and the shape."""
    with pytest.raises(UnreadableError, match=r"model\.embed_tokens\.weight"):
        api.plan_graph_dedup(edit_external(graph, **{key: number}))


def test_missing_data(graph: Path) -> None:
    """A data file that is not there is named."""
    (graph.parent / "model.onnx.data").unlink()
    assert "model.onnx.data" in refused("dedup", graph)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"not a graph at all", b"\x08\x0a"])
def test_no_graph(tmp_path: Path, data: bytes) -> None:
    """What is no graph ends in one sentence, not in a traceback."""
    (tmp_path / "x.onnx").write_bytes(data)
    assert "x.onnx" in refused("dedup", tmp_path / "x.onnx")


@pytest.mark.parametrize("cut", range(1, 12))
def test_truncated(graph: Path, cut: int) -> None:
    """A graph cut short anywhere is refused in one sentence, or has lost nothing that is read."""
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) * cut // 12])
    refused("dedup", graph)


def test_what_would_be_lost_is_refused(graph: Path) -> None:
    """Sparse initializers, which the graph library drops, are refused before anything is written."""
    model = onnx.load(graph, load_external_data=False)
    one = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(one, places, [4]))
    graph.write_bytes(model.SerializeToString())
    assert "sparse tensors" in refused("dedup", graph)
