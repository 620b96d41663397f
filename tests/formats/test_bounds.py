"""Work and memory are bounded by the file, never by a number that it declares."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.hostile import TIB, entry, file_of
from tests.patience import HANGS, patient

MEASURE = """
import resource, sys, time
from pathlib import Path
from tieconv.errors import UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.sources.local import locate, open_files
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.process_time()
tensors, code = 0, ""
try:
    listing = locate(sys.argv[1])
    with open_files(Path(listing.root)) as files:
        tensors = sum(len(file.tensors) for file in read_checkpoint(listing, files).files)
except UnreadableError as error:
    code = error.code
print(time.process_time() - started, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024, tensors, code)
"""


def measure(path: Path) -> tuple[float, int, int, str]:
    """Seconds of CPU, MiB beyond the imports, tensors found and the code of a refusal, in a process of its own."""
    program = [sys.executable, "-P", "-c", MEASURE, str(path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=HANGS, check=True)
    seconds, memory, tensors, code = (done.stdout.rstrip("\n") + " ").split(" ")[:4]
    return float(seconds), int(memory), int(tensors), code


@pytest.mark.slow
def test_half_a_million_tensors(tmp_path: Path) -> None:
    """The largest mixtures of experts store a tenth of this."""
    names = (f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.down_proj.weight" for i in range(500_000))
    content = file_of({name: entry("BF16", [0, 4096], [0, 0]) for name in names})
    (tmp_path / "model.safetensors").write_bytes(content)
    seconds, memory, tensors, _ = measure(tmp_path)
    assert (tensors, seconds <= patient(5), memory < 300) == (500_000, True, True)


@pytest.mark.slow
def test_a_large_index(tmp_path: Path) -> None:
    """200,000 tensors of one shard, in header and index."""
    names = [f"model.layers.{i}.weight" for i in range(200_000)]
    shard = "model-00001-of-00001.safetensors"
    (tmp_path / shard).write_bytes(file_of({name: entry(shape=[0], offsets=[0, 0]) for name in names}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, shard)}))
    seconds, memory, tensors, _ = measure(tmp_path)
    assert (tensors, seconds <= patient(5), memory < 512) == (200_000, True, True)


LYING = {
    "header-length": (struct.pack("<Q", 99_999_999) + b"{}", "safetensors.truncated-header"),
    "huge-header-length": (struct.pack("<Q", (1 << 64) - 1) + b"{}", "safetensors.header-too-large"),
    "shape": (file_of({"a": entry(shape=[1 << 50])}, bytes(4)), "safetensors.width"),
    "offsets": (file_of({"a": entry(shape=[1 << 50], offsets=[0, 1 << 50])}, bytes(4)), "safetensors.truncated"),
    "far-offsets": (file_of({"a": entry(offsets=[1 << 50, (1 << 50) + 4])}, bytes(4)), "safetensors.truncated"),
}


@pytest.mark.parametrize("name", LYING)
def test_lying_numbers_allocate_nothing(name: str, tmp_path: Path) -> None:
    content, expected = LYING[name]
    (tmp_path / "model.safetensors").write_bytes(content)
    seconds, memory, _, code = measure(tmp_path)
    assert code == expected
    assert memory < 16
    assert seconds < patient(1)


def test_a_sparse_tebibyte(tmp_path: Path) -> None:
    """Inspected from its header, in a second and a few megabytes."""
    header = file_of({"big": entry(shape=[TIB], offsets=[0, TIB])})
    path = tmp_path / "model.safetensors"
    path.write_bytes(header)
    try:
        os.truncate(path, len(header) + TIB)
    except OSError:
        pytest.skip("the file system has no files of 1 TiB")
    seconds, memory, tensors, code = measure(tmp_path)
    assert (tensors, code) == (1, "")
    assert memory < 16
    assert seconds < patient(1)


@pytest.mark.parametrize(
    "text", ["[]," * 3_000_000, '"ab",' * 1_500_000, "{}," * 3_000_000], ids=["lists", "strings", "objects"]
)
def test_a_header_of_small_things(text: str, tmp_path: Path) -> None:
    """Nine megabytes of the smallest values are refused before they are made."""
    (tmp_path / "model.safetensors").write_bytes(file_of('{"a":[' + text + "0]}"))
    seconds, memory, _, code = measure(tmp_path)
    assert code in ("safetensors.entry", "json.too-large")
    assert memory < 256
    assert seconds < 5


def test_many_tiny_tensors_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that would take more than 300 MiB refuses before it writes; a large model has no such limit."""
    import tieconv as api
    from tieconv.errors import TieconvError
    from tieconv.plans import guards
    from tieconv.plans.verbs import convert

    monkeypatch.setattr(guards, "MANY", 3)
    monkeypatch.setattr(guards.guard_many, "__defaults__", (3,))
    monkeypatch.setattr(convert, "MANY_FOR_TORCH", 1)
    for side, number, name, refused in ((1, 4, "t", True), (4096, 4, "t", False), (1, 1, "t" * 400, True)):
        folder = tmp_path / f"{side}-{number}"
        folder.mkdir()
        entries = {
            f"{name}{i}": {"dtype": "U8", "shape": [side], "data_offsets": [i * side, (i + 1) * side]}
            for i in range(number)
        }
        header = json.dumps(entries).encode()
        data = len(header).to_bytes(8, "little") + header + bytes(number * side)
        (folder / "model.safetensors").write_bytes(data)
        for name, plan in {
            "dedup": lambda path=folder: api.plan_dedup(path),
            "safetensors": lambda path=folder: api.plan_convert("safetensors", path),
            "torch": lambda path=folder: api.plan_convert("torch", path),
        }.items():
            try:
                plan()
                code = ""
            except TieconvError as error:
                code = error.code
            assert (code == "plan.many-tensors") == refused, (name, side, code)
