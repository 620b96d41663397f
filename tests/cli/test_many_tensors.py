"""Half a million tensors: what a whole inspection takes, in calls for each tensor, memory, and beside the peers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.hostile import entry, file_of
from tests.patience import HANGS

NAME = "model.layers.{}.mlp.experts.{}.weight"
SAVE = """
import sys, torch
state = {sys.argv[3].format(i // 1000, i % 1000): torch.zeros(1) for i in range(int(sys.argv[2]))}
torch.save(state, sys.argv[1])
"""
CALLS = """
import cProfile, pstats, sys
import tieconv
tieconv.inspect(sys.argv[2])  # imports what it needs
profile = cProfile.Profile()
profile.runcall(tieconv.inspect, sys.argv[1])
print(pstats.Stats(profile).total_calls)
"""
INSPECT = """
import resource, sys, time
import tieconv
started = time.process_time()
tieconv.inspect(sys.argv[1])
print(time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
PEER = """
import sys, time
import torch
from safetensors.torch import load_file
started = time.process_time()
path = sys.argv[1]
state = torch.load(path, weights_only=True, mmap=True) if path.endswith(".bin") else load_file(path)
print(time.process_time() - started)
"""
CALLS_PER_TENSOR = {"safetensors": 30, "bin": 95}
MOST = {"safetensors": 500_000, "bin": 250_000}  # a storage of a torch file counts as two tensors
MEBIBYTES = 1024
TWICE = 2  # the peer takes longer; a busy core may double what either takes


def child(script: str, *arguments: object) -> list[float]:
    """The numbers that a script prints, run in a process of its own."""
    words = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANGS, check=True)
    return [float(word) for word in done.stdout.split()]


def write(path: Path, tensors: int) -> Path:
    if path.suffix == ".bin":
        child(SAVE, path, tensors, NAME)
    else:
        names = (NAME.format(i // 1000, i % 1000) for i in range(tensors))
        header = {name: entry("F32", [1], [4 * i, 4 * i + 4]) for i, name in enumerate(names)}
        path.write_bytes(file_of(header, bytes(4 * tensors)))
    return path


@pytest.mark.needs("torch")
@pytest.mark.parametrize("suffix", ["safetensors", pytest.param("bin", marks=pytest.mark.slow)])
def test_calls_for_each_tensor(suffix: str, tmp_path: Path) -> None:
    """Work is linear, and a tensor takes few calls: what makes records or dictionaries anew adds some."""
    few, many = write(tmp_path / f"few.{suffix}", 500), write(tmp_path / f"many.{suffix}", 3_000)
    calls = [child(CALLS, path, few)[0] for path in (few, many)]
    assert (calls[1] - calls[0]) / 2_500 <= CALLS_PER_TENSOR[suffix]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_half_a_million_beside_the_peer(suffix: str, tmp_path: Path) -> None:
    """A whole inspection takes less CPU time than the peer takes to load, and less than 1 GiB."""
    path = write(tmp_path / f"many.{suffix}", MOST[suffix])
    pairs = [(child(INSPECT, path), child(PEER, path)) for _ in range(3)]  # in turn, so that load meets both
    assert max(memory for (_, memory), _ in pairs) < MEBIBYTES
    assert min(seconds for (seconds, _), _ in pairs) < TWICE * min(seconds for _, (seconds,) in pairs)
