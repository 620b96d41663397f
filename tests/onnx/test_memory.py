"""Memory does not grow with the matrices: they are compared, copied, turned and proved where they lie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx.nodes import model, op, outside, token_ids, value
from tieconv.onnx.parity.graph_file import Initializer

ROWS, COLUMNS = 16384, 2048
SIZE = 4 * ROWS * COLUMNS
LIMIT = SIZE // 1024 + 100 * 1024
"""KiB of anonymous memory: the libraries take about 75 MiB, and a session packs the head's matrix of 128."""

WATCHED = """
import sys, threading, time
peak = 0
def watch():
    global peak
    while True:
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        peak = max(peak, int(lines["RssAnon"].split()[0]))
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
from tieconv.cli import main
main(sys.argv[1:], standalone_mode=False)
print(peak)
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph of two 128 MiB matrices, one the other transposed."""
    matrix = np.random.default_rng(0).integers(0, 2**30, (ROWS, COLUMNS), "u4")
    with (tmp_path / "data").open("wb") as data:
        matrix.tofile(data)
        np.ascontiguousarray(matrix.T).tofile(data)
    nodes = [op("Gather", "W ids", "x"), op("MatMul", "x T", "y")]
    stored = [outside("W", (ROWS, COLUMNS), "data", 0, SIZE), outside("T", (COLUMNS, ROWS), "data", SIZE, SIZE)]
    made = model(nodes, [token_ids("ids")], [value("y", ["b", "s", ROWS])], stored, opset=18)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    return tmp_path / "model.onnx"


def peak(*words: str | Path) -> int:
    """KiB of anonymous memory that a command takes at most."""
    done = subprocess.run([sys.executable, "-c", WATCHED, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_memory_of_weights_in_the_graph(graph: Path, tmp_path: Path) -> None:
    """The same for a graph of 256 MiB that holds its weights: nothing has them in anonymous memory."""
    inline = tmp_path / "inline.onnx"
    onnx.save(onnx.load(graph), inline)
    assert peak("dedup", inline, "-o", tmp_path / "once.onnx") < LIMIT
    assert SIZE < (tmp_path / "once.onnx").stat().st_size < SIZE + 4096
    assert peak("untie", tmp_path / "once.onnx", "-o", tmp_path / "twice.onnx") < LIMIT


@pytest.mark.slow
def test_memory(graph: Path, tmp_path: Path) -> None:
    """Sharing, with its proof in a session, and its inverse, which writes a matrix transposed."""
    assert peak("dedup", graph, "-o", tmp_path / "once.onnx") < LIMIT
    assert (tmp_path / "once.onnx.data").stat().st_size == SIZE
    assert peak("untie", tmp_path / "once.onnx", "-o", tmp_path / "twice.onnx") < LIMIT
    assert (tmp_path / "twice.onnx.data").stat().st_size == 2 * SIZE
    assert (tmp_path / "twice.onnx.data").read_bytes() == (tmp_path / "data").read_bytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the kernel's account of mapped pages")
def test_compared_weights_are_given_back(tmp_path: Path) -> None:
    """Parity compares a weight in parts and returns their memory, so the graph does not stay in it."""
    import torch

    from tests.onnx.graphs import identity

    table = torch.arange(1 << 22, dtype=torch.int32).view(torch.float32).reshape(4096, 1024)
    resident: list[tuple[int, int]] = []
    drop = Initializer.drop_pages

    def counted(weight: Initializer) -> None:
        before = mapped_pages(tmp_path / "g.onnx.data")
        drop(weight)
        resident.append((before, mapped_pages(tmp_path / "g.onnx.data")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Initializer, "drop_pages", counted)
        result = identity(tmp_path, {"embed": table, "turned": table[:1024].T}, {"w": table, "t": table[:1024]})
    assert result.found == 2 and not result.unexplained
    samples = 8 << 20  # the kernel maps more pages than the few that a sample reads
    assert resident and all(after <= samples for _, after in resident)
    assert max(before for before, _ in resident) <= table.nbytes + samples  # and never both tables, or one twice


def mapped_pages(path: Path) -> int:
    """Bytes of the file that lie in this process's memory."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and words[0] == "Rss:":
            total += 1024 * int(words[1])
    return total


def test_finite_without_a_copy() -> None:
    """A NaN and both infinities are seen in any float type, without temporary tensors as large as the values."""
    import torch

    from tieconv.onnx.export.carry_out import _is_finite

    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        values = torch.zeros(3, 5, dtype=dtype)
        assert _is_finite(values) and _is_finite(values[:0])
        for bad in ("nan", "inf", "-inf"):
            values[1, 2] = float(bad)
            assert not _is_finite(values)
