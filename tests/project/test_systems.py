"""Windows is refused with one sentence; macOS gets on without what only Linux has."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import tieconv
from tests.cli.run import run
from tieconv.errors import UnsupportedSystemError
from tieconv.execute import tree

ROOT = Path(__file__).parents[2]
SENTENCE = "tieconv does not run on Windows: it needs the file operations of Linux or macOS"
WINDOWS = """
import os, sys
for module in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[module] = None
for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_CLOEXEC", "O_PATH", "O_TMPFILE", "getuid", "geteuid"):
    if hasattr(os, name):
        delattr(os, name)
from tieconv.cli import main
sys.platform = "win32"
main(["inspect", "fixtures/models/llama-tied"])
"""


def test_windows_is_refused_in_one_sentence() -> None:
    """Without the modules and flags that Windows lacks the program starts, says so and exits with 2."""
    done = subprocess.run([sys.executable, "-c", WINDOWS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines() == [f"error: {SENTENCE}", "hint: run tieconv in WSL (Windows Subsystem for Linux)"]


def test_the_python_api_refuses_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first function that is asked for raises; `import tieconv` does not."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UnsupportedSystemError, match="does not run on Windows"):
        _ = tieconv.inspect
    assert not hasattr(tieconv, "plan_nothing")


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
