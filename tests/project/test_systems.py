"""Windows, a browser and macOS get on without what only Linux has; what cannot be kept there is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

import tieconv
from tests.checks.fixtures import FIXTURES
from tests.cli.run import run
from tests.cli.stored import configure
from tests.lazy import save_file, torch
from tieconv.cli import main
from tieconv.execute import tree
from tieconv.inspection import equality

ROOT = Path(__file__).parents[2]
BARE = """
import json, os, sys
for name in ("numpy", "fcntl", "resource", "termios", "pwd", "grp", "_multiprocessing"):
    sys.modules[name] = None
for name in (
    "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_CLOEXEC", "O_PATH", "O_TMPFILE", "getuid", "geteuid", "statvfs",
    "fork", "pread", "preadv", "pwrite", "SEEK_DATA", "SEEK_HOLE", "posix_fadvise", "fchmod", "copy_file_range",
):
    if hasattr(os, name):
        delattr(os, name)
os.supports_dir_fd = set()
from click.testing import CliRunner
from tieconv.cli import main
for line in json.load(sys.stdin):
    result = CliRunner().invoke(main, line)
    print(json.dumps([result.exit_code, result.stdout, result.stderr]))
"""
"""A process without the modules and functions that Windows or a browser lacks, which runs commands."""
MODELS = [
    f"fixtures/models/{name}" for name in ("llama-tied", "llama-duplicated", "llama-tied-sharded", "t5", "qwen2-vl")
]


def bare(*lines: str) -> list[tuple[int, str, str]]:
    """The exit code, the output and the messages of commands on such a system."""
    words = json.dumps([line.split() for line in lines])
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, input=words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_the_base_needs_neither_numpy_nor_posix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a browser and Windows have is enough: each answer and each plan is the same there."""
    monkeypatch.chdir(ROOT)
    larger = shutil.copytree(MODELS[0], tmp_path / "larger")  # the tokenizer decides which size is right
    configure(larger, vocab_size=200)
    reading = "inspect --json --consumers", "check --no-config"
    lines = [f"{command} {model}" for model in MODELS for command in reading]
    lines += [f"{verb} {MODELS[1]}" for verb in ("retie", "untie", "dedup", "set-tie auto", "bias zero")]
    lines += [
        f"inspect {larger}",
        f"check --no-config {larger}",
        f"diff --json {MODELS[0]} {MODELS[2]}",
        f"check --no-config --jobs 2 {' '.join(MODELS)}",
        "explain TIE001",
        "rules",
        f"convert --to torch {MODELS[0]}",
    ]
    for line, answer in zip(lines, bare(*lines), strict=True):
        usual = CliRunner().invoke(main, line.split())
        assert answer == (usual.exit_code, usual.stdout, usual.stderr), line


def test_differences_without_numpy(tmp_path: Path) -> None:
    """Rows are counted by their bytes; types that differ and codes are not compared; the rest is refused."""
    inspected, compared, refused, written, checked, beside = bare(
        "inspect fixtures/models/llama-diverged",
        "diff fixtures/models/llama-diverged fixtures/models/llama-tied",
        "analyze fixtures/models/llama-tied",
        "retie fixtures/models/llama-duplicated -o nowhere",
        f"check --no-config {FIXTURES['QNT006 bad'](tmp_path / 'both')}",
        f"check --no-config {FIXTURES['QNT001 good'](tmp_path / 'head')}",
    )
    sentence = "3 of 192 rows differ, the first of them by at most 0.252; numpy measures the rest"
    assert inspected[0] == 0 and sentence in inspected[1] and "error    TIE001" in inspected[1]
    assert compared[0] == 1 and sentence in compared[1]
    assert refused[0] == 2 and refused[2].startswith("error: this needs numpy, which is not installed")
    assert written[0] == 2 and "tieconv does not write files on this system" in written[2]
    assert not (ROOT / "nowhere").exists()
    assert checked[0] == 1 and "warning  TIE012" in checked[1]
    assert "note: model.embed_tokens.weight, lm_head.weight of" in checked[2]
    assert beside[2].startswith("note: lm_head.weight of")  # it names each tensor once


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_are_counted_without_numpy(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row that differs is measured if it is finite; the transpose and zeros are proved; types must agree."""
    table = torch.arange(2400).reshape(300, 8).to(getattr(torch, dtype))
    head, wider = table.clone(), table.to(torch.float64 if dtype != "float64" else torch.float32)
    head[7, 3] += 0.5
    head[290, 3] *= 2
    undefined, signed = head.clone(), table.clone()
    undefined[7, 4] = float("nan")
    signed[0, 0] = -0.0
    monkeypatch.setattr(equality, "find_spec", lambda name: None)
    for stored, state, reason in (
        (head, "distinct", "2 of 300 rows differ, the first of them by at most 0.5; numpy measures the rest"),
        (undefined, "distinct", "2 of 300 rows differ; numpy measures the rest"),
        (signed, "near", ""),
        (table.T.contiguous(), "transposed", ""),
        (wider, "unread", "the types differ, and tieconv compares such values only with numpy"),
    ):
        save_file({"model.embed_tokens.weight": table, "lm_head.weight": stored}, tmp_path / "model.safetensors")
        tie = tieconv.inspect(tmp_path, depth="full").word_tie
        assert tie is not None
        assert (str(tie.members[1].state), getattr(tie.members[1].relation, "reason", "")) == (state, reason)


def test_a_browser_that_has_locks_refuses_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python for WebAssembly has `fcntl` and descriptors of directories, but no users."""
    monkeypatch.delattr(os, "geteuid")
    done = CliRunner().invoke(main, ["retie", str(ROOT / MODELS[1]), "-o", str(tmp_path / "out")])
    assert (done.exit_code, os.listdir(tmp_path)) == (2, [])
    assert done.stderr.startswith("error: tieconv does not write files on this system")


def test_a_long_row_is_measured_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that would not fit in memory as Python's numbers counts once and costs blocks."""
    monkeypatch.setattr(equality, "find_spec", lambda name: None)
    table, head = torch.zeros(1, 1 << 20), torch.zeros(1, 1 << 20)
    head[0, 5], head[0, -1] = 1.0, 3.0
    save_file({"model.embed_tokens.weight": table, "lm_head.weight": head}, tmp_path / "model.safetensors")
    tracemalloc.start()
    tie = tieconv.inspect(tmp_path, depth="full").word_tie
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reason = "1 of 1 rows differ, the first of them by at most 3; numpy measures the rest"
    assert tie is not None and getattr(tie.members[1].relation, "reason", "") == reason
    assert peak < 8 << 20


def test_a_forbidden_directory_is_removed_without_o_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no `O_PATH`: chmod gets the directory's name and must not follow a symlink."""
    calls: list[tuple[str, int, bool]] = []
    real = os.chmod

    def chmod(path: str, mode: int, *, dir_fd: int, follow_symlinks: bool) -> None:
        calls.append((path, mode, follow_symlinks))
        real(path, mode, dir_fd=dir_fd)  # Linux cannot leave symlinks alone; here is none

    (tmp_path / "shut").mkdir()
    home = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.delattr(os, "O_PATH")
    monkeypatch.setattr(os, "chmod", chmod)
    try:
        tree._allow(home, "shut", os.O_DIRECTORY | os.O_NOFOLLOW)
    finally:
        os.close(home)
    assert calls == [("shut", 0o700, False)]
    assert stat.S_IMODE((tmp_path / "shut").stat().st_mode) == 0o700


def test_the_peak_memory_of_macos_is_counted_in_bytes(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number from the system is 1024 times less there."""
    import resource

    class Usage:
        ru_maxrss = 300 * 1024

    monkeypatch.setattr(resource, "getrusage", lambda _: Usage)
    words = ["retie", "-v", str(models / "llama-duplicated"), "-o"]
    assert "peak memory 315 MB" in run(" ".join(words), tmp_path / "a").stderr
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "peak memory 307 kB" in run(" ".join(words), tmp_path / "b").stderr
