"""An archive that brings a staging directory along: no verb writes through it, adopts it, or takes anything from it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.run import ok, run
from tests.execute.test_leftover import whole_state
from tieconv.checkpoint.results.parity import Parity, ProviderUse, Verdict
from tieconv.execute.staging import Owner
from tieconv.execute.target import staging_path

ROOT = Path(__file__).parents[2]
VERBS = {
    "retie": "llama-duplicated",
    "untie": "llama-tied",
    "dedup": "llama-duplicated",
    "convert --to torch": "llama-tied",
    "bias zero": "llama-untied",
    "set-tie true": "llama-duplicated",
    "reindex": "llama-tied-sharded",
    "check --fix": "llama-duplicated",
}
Plant = Callable[[Path, Path], None]


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A model on which each verb has something to write."""
    monkeypatch.chdir(tmp_path)

    def make(verb: str) -> Path:
        folder = Path(shutil.copytree(ROOT / "fixtures" / "models" / VERBS[verb], tmp_path / "model"))
        name = {"set-tie true": "config.json", "reindex": "model.safetensors.index.json"}.get(verb)
        if name:
            value = json.loads((folder / name).read_text())
            if verb == "reindex":
                value["metadata"] = {"total_size": 1}
            else:
                value["tie_word_embeddings"] = False
            (folder / name).write_text(json.dumps(value))
        return folder

    return make


def weights(folder: Path) -> Path:
    return next(path for path in sorted(folder.iterdir()) if path.suffix == ".safetensors")


def hard_linked_marker(staging: Path, folder: Path) -> None:
    staging.mkdir(0o700)
    os.link(weights(folder), staging / "owner")


def planted_old(staging: Path, folder: Path) -> None:
    staging.mkdir(0o700)
    (staging / "owner").write_bytes(replace(Owner.current(), ticks=1).encode())
    shutil.copytree(folder, staging / "old")


PLANTS = (hard_linked_marker, planted_old)
"""`tests/execute/test_leftover.py` plants the others; here each verb meets one of its marker and one of its content."""


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("in_place", [True, False])
def test_planted(unpacked: Callable[[str], Path], tmp_path: Path, verb: str, plant: Plant, in_place: bool) -> None:
    """Exit 2 with one sentence that names the directory; every file keeps its bytes, inode, mode and times."""
    folder = unpacked(verb)
    out = folder if in_place else tmp_path / "out"
    plant(staging_path(out), folder)
    before = whole_state(tmp_path)
    result = run(verb, folder, *(["--in-place"] if in_place else ["-o", out]))
    assert result.exit_code == 2, result.output
    assert f"{staging_path(out).name} is in the way: " in result.output
    assert whole_state(tmp_path) == before


@pytest.mark.parametrize("verb", VERBS)
def test_the_verbs_write_without_it(unpacked: Callable[[str], Path], verb: str) -> None:
    """The same commands on the same models write: what is refused above is the planted directory alone."""
    folder = unpacked(verb)
    before = whole_state(folder)
    ok(verb, folder, "--in-place")
    assert whole_state(folder) != before


@pytest.mark.parametrize("verb", ["retie", "set-tie true"])
def test_nothing_to_write(unpacked: Callable[[str], Path], tmp_path: Path, verb: str) -> None:
    """Where nothing is to be written, nothing of the planted directory is touched either."""
    folder = unpacked(verb)
    ok(verb, folder, "--in-place")
    hard_linked_marker(staging_path(folder), folder)
    before = whole_state(tmp_path)
    run(verb, folder, "--in-place")
    assert whole_state(tmp_path) == before


def test_files_beside_reports(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    """A report whose name is a hard link to the weights replaces the name, not the weights."""
    folder = unpacked("retie")
    content = weights(folder).read_bytes()
    os.link(weights(folder), tmp_path / "report.json")
    run("check --format json --output-file report.json", folder)
    assert weights(folder).read_bytes() == content
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "tieconv.check/1"


def test_nothing_is_appended_through_a_hard_link(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    """The file of a run grows; the file that an archive gave a second name to does not."""
    folder = unpacked("retie")
    (folder / "empty.txt").write_bytes(b"")
    os.link(folder / "empty.txt", tmp_path / "run.jsonl")
    result = run("check --no-config --resume run.jsonl", folder)
    assert result.exit_code == 2, result.output
    assert "does not append to run.jsonl: it is a hard link to another file" in result.output
    assert (folder / "empty.txt").read_bytes() == b""


@pytest.mark.parametrize("line", ["check --no-config --output-file", "check --no-config --write-baseline"])
def test_reports_stay_out_of_the_hub_cache(unpacked: Callable[[str], Path], tmp_path: Path, line: str) -> None:
    """A report written over a snapshot's link would replace a blob that other snapshots share."""
    folder = unpacked("retie")
    blob = tmp_path / "models--o--n" / "blobs" / "abc"
    link = tmp_path / "models--o--n" / "snapshots" / "1" / "config.json"
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_bytes(b"")
    link.symlink_to(blob)
    result = run(line, link, folder)
    assert result.exit_code == 2, result.output
    assert "is in the Hub cache" in result.output
    assert blob.read_bytes() == b""
    assert os.listdir(blob.parent) == ["abc"]


REPORTS = {
    "check --no-config --fail-on error --format json --output-file out": "out",
    "check --no-config --write-baseline out": "out",
    "check --no-config --fail-on error --resume out": "out",
    "analyze --html out": "out",
    "analyze --csv out": "out",
    "analyze --parquet out": "out",
    "analyze --figures .": "head-and-embedding.svg",
    "analyze --revisions step-1,step-2 --resume out": "out",
}
"""Commands that write a report, and what they write."""


def test_reports_are_new_files(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    """Each report refuses a symlink, a FIFO and a directory at its name; a planted file lends it no mode."""
    folder = unpacked("untie")
    for step in ("step-1", "step-2"):
        shutil.copytree(ROOT / "fixtures" / "models" / "llama-untied", tmp_path / "models" / step)
    (tmp_path / "new").touch()
    mode = (tmp_path / "new").stat().st_mode
    for line in REPORTS:
        model = tmp_path / "models" if "--revisions" in line else folder
        home = tmp_path / "home"
        os.makedirs(home)
        os.chdir(home)
        first = run(line, model)
        assert first.exit_code == 0, (line, first.output)
        names = os.listdir(home)
        assert names, line
        name = REPORTS[line] if REPORTS[line] in names else names[0]
        for kind in ("symlink", "fifo", "directory"):
            os.unlink(name)
            (tmp_path / "victim").write_bytes(b"")
            _plant(kind, Path(name), tmp_path / "victim")
            result = run(line, model)
            assert result.exit_code == 2 and name in result.stderr, (line, kind, result.output)
            assert (tmp_path / "victim").read_bytes() == b"", (line, kind)
            assert sorted(os.listdir(home)) == sorted(names), (line, kind)
            Path(name).rmdir() if kind == "directory" else os.unlink(name)
            Path(name).touch()
        os.chmod(name, 0o6777)
        again = run(line, model)
        assert again.exit_code == 0, (line, again.output)
        assert Path(name).stat().st_size and Path(name).stat().st_mode == mode, line
        os.chdir(tmp_path)
        shutil.rmtree(home)


def _plant(kind: str, path: Path, victim: Path) -> None:
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()


def test_pipes_of_the_shell_are_written(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    """`--output-file >(gzip)` passes a name below /dev/fd, and `/dev/null` is not replaced."""
    folder = unpacked("untie")
    reading, writing = os.pipe()
    result = run(f"check --no-config --fail-on error --format json --output-file /dev/fd/{writing}", folder)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert json.loads(pipe.read())["schema"] == "tieconv.check/1", result.output
    assert run("check --no-config --fail-on error --output-file /dev/null", folder).exit_code == 0


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm, the directory below /dev that is shared")
def test_a_symlink_below_dev(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    """A directory in memory is as any other: nothing is written through a symlink in it."""
    folder = unpacked("untie")
    (tmp_path / "victim").write_bytes(b"")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        Path(memory, "report.json").symlink_to(tmp_path / "victim")
        result = run("check --no-config --format json --output-file", f"{memory}/report.json", folder)
    assert result.exit_code == 2 and "is a symlink" in result.stderr, result.output
    assert (tmp_path / "victim").read_bytes() == b""


def test_a_page_of_parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`parity --html` replaces a name as well: a second name of the weights keeps its bytes."""
    from tieconv.cli import graphs
    from tieconv.reporters.html import parity_page

    report = Parity(Verdict.PASSED, "model.onnx", "model", ProviderUse("cpu"))
    monkeypatch.setattr(graphs, "parity", lambda *_args, **_options: report)
    monkeypatch.setattr(parity_page, "render", lambda _report: "<html>")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    os.link(tmp_path / "model.safetensors", tmp_path / "page.html")
    result = run("parity model.onnx --html", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"
    assert (tmp_path / "page.html").read_text() == "<html>"
