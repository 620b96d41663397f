"""`--hardlink`: two directories hold the same files, and what is written to one later is not written to the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.run import ok, run

FIRST = ("untie", "untie --bias zero", "set-tie auto", "dedup", "convert --to torch", "reindex")
LATER = ("untie", "untie --keep-flag", "retie", "set-tie false", "bias zero", "dedup", "convert --to torch", "reindex")


def states(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Of every file the bytes, the time of the last change in nanoseconds and the mode."""
    by_path = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(folder)): (path.read_bytes(), s.st_mtime_ns, s.st_mode) for path, s in by_path.items()}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["llama-tied", "llama-tied-sharded", "qwen2-vl", "bart"])
@pytest.mark.parametrize("first", FIRST)
def test_nothing_is_written_through_a_link(model, tmp_path: Path, name: str, first: str) -> None:
    """Whatever verb wrote the links and whatever verb changes the output in place: the source stays as it was."""
    source, out = model(name), tmp_path / "out"
    before = states(source)
    if run(first, source, "-o", out, "--hardlink").exit_code != 0:
        assert not out.exists() and states(source) == before
        return
    linked = [path for path in out.rglob("*") if path.is_file() and path.stat().st_nlink > 1]
    assert linked or first == "reindex"
    for later in LATER:
        run(later, out, "--in-place")
        assert states(source) == before, later


def test_the_source_may_change_too(model, tmp_path: Path) -> None:
    """Written in place afterwards, the source leaves the linked output as it was."""
    source, out = model("llama-tied-sharded"), tmp_path / "out"
    ok("untie", source, "-o", out, "--hardlink")
    before = states(out)
    ok("untie --bias zero --in-place", source)
    ok("convert --to torch --in-place", source)
    assert states(out) == before
