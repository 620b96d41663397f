"""`tieconv check` as a CI job meets it: exit codes, selection, settings, the baseline, many models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tieconv
import tieconv as api
from fixtures.gguf_bytes import F32, gguf
from tests.cli.run import ok, refused, run
from tests.cli.stored import snapshot
from tests.patience import HANGS
from tieconv.cli.check import engine_of

ROOT = Path(__file__).parents[2]
Copy = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("elsewhere")


def document(line: str, *more: str | Path) -> dict[str, Any]:
    """The JSON of a check, whatever its exit code."""
    report: dict[str, Any] = json.loads(run(f"check --format json {line}", *more).stdout)
    return report


def rules(report: dict[str, Any], waived: bool = False) -> list[list[str]]:
    """The rules of each model's findings that count, or of those that are waived."""
    return [
        [finding["rule"] for finding in model["findings"] if bool(finding["waiver"]) == waived]
        for model in report["models"]
    ]


# --- the answer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "level", "code"),
    [
        ("llama-tied", "note", 0),
        ("llama-duplicated", "error", 0),
        ("llama-duplicated", "warning", 1),
        ("llama-duplicated", None, 1),
        ("llama-diverged", "error", 1),
    ],
)
def test_the_exit_code_is_the_answer(models: Path, name: str, level: str | None, code: int) -> None:
    """1 for a finding at or above the level, which is warning where nothing is said."""
    assert run(f"check {f'--fail-on {level}' if level else ''}", models / name).exit_code == code


def test_an_unreadable_model_does_not_hide_the_others(models: Path, tmp_path: Path) -> None:
    """It is a row with its sentence and hint, the exit code is 2, and every other model is checked."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"junk")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    paths = [models / "llama-diverged", broken, fifo, tmp_path / "absent", models / "llama-tied"]
    result = run("check --format json", *paths)
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert [model["source"] for model in report["models"]] == list(map(str, paths))
    assert rules(report) == [["TIE001"], [], [], [], []]
    failures = [model["failure"] for model in report["models"]]
    assert [failure is None for failure in failures] == [True, False, False, False, True]
    assert all(failure["message"] and failure["hint"] for failure in failures if failure)
    assert "5 models: 1 error, 3 not checked. The check failed: 1 finding has level warning or higher." in result.stderr
    assert "absent: no such file" in run("check", *paths).stdout


def test_one_model_under_two_names_is_checked_once(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first name is the one that is told."""
    monkeypatch.chdir(models)
    report = document("", "t5", models / "t5", "./t5/")
    assert [model["source"] for model in report["models"]] == ["t5"]


def test_the_api_is_the_command(models: Path) -> None:
    """`tieconv.check` takes a path or several, and prints as the JSON."""
    report = tieconv.check(models / "llama-duplicated", fail_on="error")
    assert (report.exit_code, report.failed) == (0, 0)
    assert json.loads(str(report)) == document("--fail-on error", models / "llama-duplicated")
    assert tieconv.check([str(models / "t5"), models / "llama-diverged"]).failed == 1


# --- selection and settings ------------------------------------------------------------------------------


def test_selection_on_the_command_line(models: Path) -> None:
    """Codes and prefixes, repeated or with commas; what is ignored stays in the report with its waiver."""
    model = models / "llama-duplicated"
    assert rules(document("--select STO,BIA", model)) == [[]]
    assert document("--select BIA,TIE001", model)["rules"] == [
        "TIE001",
        "BIA001",
        "BIA002",
        "BIA003",
        "BIA004",
        "BIA005",
    ]
    assert document("", model)["rules"] == []
    assert rules(document("--select TIE00 --select BIA", model)) == [["TIE002"]]
    report = document("--ignore TIE", model)
    assert (rules(report), rules(report, waived=True), report["failed"]) == ([[]], [["TIE002"]], 0)
    assert rules(document("--select TIE002 --ignore TIE", model)) == [["TIE002"]]
    assert "did you mean" in run("check --ignore TIE022", model).stderr


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_loader_that_nobody_knows_is_no_fault_of_a_model(models: Path, jobs: int) -> None:
    """`--for` with a typo: one sentence, whichever process met it."""
    assert "no-such-loader" in refused(f"check --for no-such-loader --jobs {jobs}", models / "t5", models / "bart")


def test_several_loaders_are_one_list(models: Path) -> None:
    """The last `--for` does not replace the others: each is judged, as with a comma."""
    model = models / "llama-headless-config"
    for line in ("--for transformers==4.48 --for vllm==0.28", "--for transformers==4.48,vllm==0.28"):
        document = json.loads(run(f"inspect --json {line}", model).stdout)
        assert [each["name"] for each in document["consumers"]] == ["transformers", "vllm"]
    for command in ("check", "inspect"):
        assert "no-such-loader" in refused(f"{command} --for no-such-loader --for vllm", model)


SETTINGS = """
fail-on = "error"
ignore = ["STO"]
[[per-model]]
model = "models/llama-d*"
ignore = ["TIE001"]
reason = "known: trained apart"
"""


@pytest.mark.parametrize("name", ["tieconv.toml", "pyproject.toml"])
def test_settings_are_found_upward(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From a directory below them; the options that are given go before them."""
    shutil.copytree(models, tmp_path / "models")
    text = SETTINGS if name == "tieconv.toml" else f"[tool.tieconv]{SETTINGS}".replace("[[per", "[[tool.tieconv.per")
    (tmp_path / name).write_text(text)
    (tmp_path / "deep" / "down").mkdir(parents=True)
    (tmp_path / "deep" / "pyproject.toml").write_text("[tool.ruff]\n")  # has no settings: not the nearest
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "deep" / "down")
    diverged, duplicated = tmp_path / "models" / "llama-diverged", tmp_path / "models" / "llama-duplicated"
    result = ok("check", diverged, duplicated)
    assert f"passed. Settings: {os.path.join('..', '..', name)}" in result.stderr
    waived = document("", diverged)["models"][0]["findings"][0]["waiver"]
    assert waived == {"by": "model", "reason": "known: trained apart"}
    assert run("check --fail-on warning", diverged, duplicated).exit_code == 1
    assert run("check --no-config", diverged).exit_code == 1
    assert ok("check --config", tmp_path / name, diverged).stdout


def test_a_model_does_not_set_its_own_terms(model: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that lie in a model are passed over, and told; --config uses them all the same."""
    folder = model("llama-diverged")
    (folder / "tieconv.toml").write_text('ignore = ["ALL"]\n')
    monkeypatch.chdir(folder)
    result = run("check")
    assert result.exit_code == 1 and "note: tieconv.toml is inside the model directory" in result.stderr
    assert ok("check --config tieconv.toml").exit_code == 0


def test_settings_that_are_wrong_stop_the_gate(models: Path, tmp_path: Path) -> None:
    """Exit 2 with the key and the file, and nothing on stdout."""
    file = tmp_path / "tieconv.toml"
    file.write_text("fail_on = 'error'\n")
    error = refused(f"check --config {file}", models / "t5")
    assert error == f"{file}: unknown setting fail_on"
    assert "no such file" in refused("check --config /nowhere.toml", models / "t5")
    assert "no [tool.tieconv]" in refused(f"check --config {ROOT / 'pyproject.toml'}", models / "t5")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "not a regular file" in refused(f"check --config {fifo}", models / "t5")


# --- the baseline ----------------------------------------------------------------------------------------


def test_a_baseline_holds_the_debt(model: Copy, tmp_path: Path) -> None:
    """Known findings pass, a new one fails, a fixed one is told, and rewriting drops it."""
    duplicated, diverged = model("llama-duplicated"), model("llama-diverged")
    file = tmp_path / "ci" / "debt.json"
    file.parent.mkdir()
    wrote = ok(f"check --write-baseline {file}", duplicated, diverged)
    assert wrote.stdout == "" and f"wrote {file}: 2 findings as a baseline" in wrote.stderr
    entries = json.loads(file.read_text())["entries"]
    assert [(entry["model"], entry["rule"]) for entry in entries] == [
        ("../llama-diverged", "TIE001"),
        ("../llama-duplicated", "TIE002"),
    ]
    report = document(f"--baseline {file}", duplicated, diverged)
    assert (rules(report), report["failed"]) == ([[], []], 0)
    third = model("llama-headless-config")
    assert run(f"check --baseline {file}", duplicated, diverged, third).exit_code == 1
    ok("retie --in-place", duplicated)
    result = ok(f"check --baseline {file}", duplicated, diverged)
    assert "1 entry of the baseline is fixed: update the baseline with --write-baseline" in result.stderr
    ok(f"check --write-baseline {file}", duplicated)
    assert [entry["rule"] for entry in json.loads(file.read_text())["entries"]] == ["TIE001"]


def test_entries_of_deleted_models_are_counted_and_dropped(
    model: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if the directory is checked as a whole. The path of a baseline in the settings is relative."""
    duplicated = model("llama-duplicated")
    model("llama-diverged")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tieconv.toml").write_text('baseline = "debt.json"\n')
    ok("check --recursive . --write-baseline debt.json")
    shutil.rmtree(tmp_path / "llama-diverged")
    whole, alone = ok("check --recursive ."), ok("check", duplicated)
    assert (
        "1 entry of the baseline is of deleted models: update the baseline with --write-baseline debt.json"
        in whole.stderr
    )
    assert "waived (baseline: debt.json)" in whole.stdout and "of the baseline" not in alone.stderr
    ok("check --write-baseline debt.json", duplicated)
    assert len(json.loads((tmp_path / "debt.json").read_text())["entries"]) == 2
    ok("check --recursive . --write-baseline debt.json")
    assert [entry["model"] for entry in json.loads((tmp_path / "debt.json").read_text())["entries"]] == [
        "llama-duplicated"
    ]


def test_a_baseline_moves_with_its_models(model: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the file, wherever the command stands and however it names the model."""
    model("llama-duplicated")
    ok(f"check --write-baseline {tmp_path}/debt.json", tmp_path / "llama-duplicated")
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    monkeypatch.chdir(moved / "llama-duplicated")
    assert ok("check --baseline ../debt.json").exit_code == 0
    moved.rename(tmp_path)


def test_a_baseline_of_the_models_that_were_read(model: Copy, tmp_path: Path) -> None:
    """The model that was not read is named, and keeps its entries. The exit code is 2."""
    duplicated, diverged, file = model("llama-duplicated"), model("llama-diverged"), tmp_path / "debt.json"
    weights = diverged / "model.safetensors"
    whole = weights.read_bytes()
    for known in (["TIE002"], ["TIE001", "TIE002"]):
        weights.write_bytes(whole[:100])
        result = run(f"check --write-baseline {file}", duplicated, diverged)
        assert result.exit_code == 2 and f"wrote {file}: {len(known)} finding" in result.stderr
        assert f"error: the baseline has no findings of a model that could not be read: {diverged}" in result.stderr
        assert sorted(entry["rule"] for entry in json.loads(file.read_text())["entries"]) == known
        weights.write_bytes(whole)
        ok(f"check --write-baseline {file}", duplicated, diverged)


def test_a_baseline_is_never_half_known(models: Path, tmp_path: Path) -> None:
    """A model that cannot be read has unknown findings. With no other model, nothing is written."""
    file = tmp_path / "debt.json"
    assert "was not written" in refused(f"check --write-baseline {file}", tmp_path / "absent")
    assert not file.exists()
    (tmp_path / "pointer").mkdir()
    (tmp_path / "pointer" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid\n")
    why = refused(f"check --write-baseline {file}", tmp_path / "pointer")
    assert f"was not written: {tmp_path / 'pointer'}: model.safetensors is a Git LFS pointer" in why
    file.write_text('{"precious": true}')
    assert "is not a tieconv.baseline/1 file" in refused(f"check --write-baseline {file}", models / "t5")
    assert file.read_text() == '{"precious": true}'
    assert "is not a tieconv.baseline/1 file" in refused(f"check --baseline {file}", models / "t5")
    assert "no such file" in refused(f"check --baseline {tmp_path}/none.json", models / "t5")


# --- where the result goes -------------------------------------------------------------------------------


def test_the_result_can_go_to_a_file(models: Path, tmp_path: Path) -> None:
    """Whole, in the format that is asked for; stdout is empty and the summary still on stderr."""
    file = tmp_path / "report.json"
    result = run(f"check --format json --output-file {file}", models / "llama-diverged")
    assert (result.exit_code, result.stdout) == (1, "")
    assert rules(json.loads(file.read_text())) == [["TIE001"]]
    assert (
        "/nowhere/x cannot be written: no such file or directory"
        in run("check --output-file /nowhere/x", models / "t5").stderr
    )
    assert list(tmp_path.iterdir()) == [file]
    listed = tmp_path / "models.txt"
    listed.write_text(f"{models / 't5'}\n")
    for more, streams in (("", ["stdout"]), (f"--output-file {file}", ["stderr"])):
        result = run(f"check @{listed} {more}")  # a list also gets a table
        assert [name for name in ("stdout", "stderr") if "verdict" in getattr(result, name)] == streams
    assert f"{tmp_path} cannot be written: it is a directory" in refused(
        f"check --output-file {tmp_path}", models / "t5"
    )


def test_further_reports_beside_the_log(models: Path, tmp_path: Path) -> None:
    """Each --report is what --format prints, and stdout keeps the text."""
    model, formats = models / "llama-diverged", ("sarif", "junit", "json", "markdown")
    result = run(f"check {' '.join(f'--report {name}={tmp_path / name}' for name in formats)}", model)
    assert (result.exit_code, result.stdout) == (1, run("check", model).stdout)
    assert result.stderr.splitlines()[:4] == [f"wrote {tmp_path / name}" for name in formats]
    for name in formats:
        assert (tmp_path / name).read_text() == run(f"check --format {name}", model).stdout
    for wrong in ("sarfi=x", "json=", "json"):
        assert "--report takes FORMAT=FILE" in refused(f"check --report {wrong}", model)
    assert "a page as HTML: tieconv fleet report" in refused("check --report html=page.html", model)
    assert not Path("x").exists()


def test_a_report_never_replaces_a_file_of_a_model(model: Copy) -> None:
    """Neither the result, nor a further report, nor a baseline."""
    folder = model("llama-tied")
    before = snapshot(folder)
    assert "is a file of the model" in refused(f"check --report json={folder / 'config.json'}", folder)
    for option in ("--output-file", "--write-baseline"):
        assert "is a file of the model" in refused(f"check {option}", folder / "config.json", folder)
    assert snapshot(folder) == before


def test_checking_writes_nothing(model: Copy) -> None:
    """Not in the model, not beside it."""
    folder = model("llama-duplicated")
    before = snapshot(folder.parent)
    run("check --depth full", folder)
    assert snapshot(folder.parent) == before


# --- many models, and the machine ------------------------------------------------------------------------


def test_order_is_that_of_the_arguments(models: Path, tmp_path: Path) -> None:
    """Two hundred models by two processes give what one gives, byte for byte."""
    names = ["llama-tied", "llama-duplicated", "llama-diverged", "t5"]
    paths = []
    for number in range(200):
        paths.append(tmp_path / f"{number * 37 % 200:03d}")
        paths[-1].symlink_to(models / names[number % 4])
    (tmp_path / "000").unlink()  # and one of them is not there
    single, parallel = (run(f"check --format json --jobs {jobs}", *paths) for jobs in (1, 2))
    assert single.exit_code == parallel.exit_code == 2
    assert single.stdout == parallel.stdout and single.stderr == parallel.stderr
    assert [model["source"] for model in json.loads(single.stdout)["models"]] == list(map(str, paths))


def test_jobs_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-j 1` means every CPU of it, and the address is refused without it."""
    monkeypatch.setattr("tieconv.cli.check.ray_cluster", lambda _: nullcontext(SimpleNamespace(workers=8)))
    for jobs, at_once in ((1, 8), (2, 2)):
        with engine_of("ray", None, jobs) as (executor, number):
            assert executor is not None and number == at_once
    with engine_of("processes", None, 3) as engine:
        assert engine == (None, 3)
    assert "--address needs --engine ray" in refused("check --address auto a")


def test_progress_counts_models(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first to the last."""
    drawn: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "tieconv.cli.check.count_progress", lambda label: nullcontext(lambda *numbers: drawn.append(numbers))
    )
    run("check", models / "t5", models / "llama-tied")
    assert drawn == [(1, 2), (2, 2)]


def test_hostile_names_reach_no_terminal(models: Path, tmp_path: Path) -> None:
    """Control characters in a model's path are escaped on both streams; a newline starts no line."""
    folder = tmp_path / "\x1b[31m\u202eevil\n::error::x"
    shutil.copytree(models / "llama-duplicated", folder)
    for result in (run("check", folder), run("check", tmp_path / "no\x1b[2Jne"), run("check --fix", folder)):
        text = result.stdout + result.stderr
        assert "\x1b" not in text and "\u202e" not in text
        assert not any(line.startswith("::") for line in text.splitlines())


def tieconv_process(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tieconv", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def test_a_model_by_two_paths_is_checked_once(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first name is printed."""
    monkeypatch.chdir(models)
    result = run("check", "t5", "./t5", models / "t5")
    assert result.stderr.startswith("1 model: ") and result.stdout.startswith("t5: ")


def test_an_interrupt_is_no_answer(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 130: 1 would say that there is a finding."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tieconv.cli.check.run_gate", interrupted)
    result = run("check", models / "t5")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


_INTERRUPTED = """
import atexit, sys
from tieconv import __main__
atexit.register(print, "taken down")
if "torch" in sys.argv:
    sys.modules["torch"] = sys
__main__.main = lambda **_: print("output") or sys.exit(int(sys.argv[1]))
__main__.run()
"""


@pytest.mark.parametrize(("words", "down"), [(("130", "torch"), False), (("130", ""), True), (("1", "torch"), True)])
def test_an_interrupt_takes_no_model_down(words: tuple[str, ...], down: bool) -> None:
    """Python needs a second for torch and gigabytes. What was printed is printed all the same."""
    result = subprocess.run([sys.executable, "-c", _INTERRUPTED, *words], capture_output=True, text=True, cwd=ROOT)
    printed = ["output", "taken down"] if down else ["output"]
    assert (result.returncode, result.stdout.splitlines()) == (int(words[0]), printed)


def test_a_reader_that_goes_away(models: Path) -> None:
    """`| head`: quiet, and no traceback."""
    process = tieconv_process("check", "--format", "json", *[models / "llama-diverged"] * 3)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(HANGS) == 141
    assert process.stderr.read().count("\n") <= 1
    process.stderr.close()


def test_a_bug_in_one_model_is_told_with_it(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw is that model's failure, and the others are checked."""
    real = api.inspect

    def sometimes(path: str, **options: Any) -> object:
        if Path(path).name == "t5":
            raise KeyError("\x1bx")
        return real(path, **options)

    monkeypatch.setattr("tieconv.api.check.inspect", sometimes)
    report = document("", models / "t5", models / "llama-diverged")
    assert "unexpected KeyError" in report["models"][0]["failure"]["message"]
    assert rules(report) == [[], ["TIE001"]]


def test_a_hundred_sharded_models_cost_their_headers(model: Copy, tmp_path: Path) -> None:
    """Fifteen shards each, in seconds and without keeping one model while the next is read."""
    sharded = tmp_path / "sharded"
    ok("convert --to safetensors --max-shard-size 1500B", model("llama-tied"), "-o", sharded)
    assert len(list(sharded.glob("*.safetensors"))) >= 15
    paths = [tmp_path / f"m{number}" for number in range(100)]
    for path in paths:
        path.symlink_to(sharded)
    code = (
        "import resource, sys, tieconv\n"
        f"one = tieconv.check({str(sharded)!r}); few = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"report = tieconv.check({list(map(str, paths))!r})\n"
        "print(len(report.models), report.failed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - few)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=HANGS
    )
    checked, failed, more = map(int, result.stdout.split())
    assert (checked, failed) == (100, 0)
    assert more < 8 << 10  # KiB


@pytest.mark.parametrize(
    "line", ["-o OUT", "--in-place", "--fix -o OUT --in-place", "--config x --no-config", "--fix --write-baseline x"]
)
def test_options_that_do_not_go_together(models: Path, line: str) -> None:
    """Exit 2 and a sentence, before anything is read."""
    assert refused(f"check {line}", models / "t5")


def test_the_models_of_a_directory_beside_other_things(model, tmp_path: Path) -> None:
    """A file and a directory without a model are passed over."""
    home = tmp_path / "my models"
    (home / "logs").mkdir(parents=True)
    (home / "notes.txt").write_text("x")
    shutil.copytree(model("llama-tied"), home / "b")
    shutil.copytree(home / "b", home / "a")
    models = json.loads(ok("check --format json", home).stdout)["models"]
    assert [entry["source"] for entry in models] == [str(home / "a"), str(home / "b")]


# --- settings that came with a model ----------------------------------------------------------------------

SILENCE = {
    "tieconv.toml": 'ignore = ["ALL"]\nbaseline = "debt.json"\n',
    "pyproject.toml": '[tool.tieconv]\nignore = ["ALL"]\nbaseline = "debt.json"\n',
}
PLACEMENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # where the settings lie below the download, the working directory, and the arguments
    "the model": ("rel", "rel", ()),
    "a dot": ("rel", "rel", (".",)),
    "the file": ("rel", "rel", ("model.safetensors",)),
    "the file with a dot": ("rel", "rel", ("./model.safetensors",)),
    "a pattern": ("rel", "rel", ("*.safetensors",)),
    "the absolute directory": ("rel", "rel", ("{top}/rel",)),
    "the absolute file": ("rel", "rel", ("{top}/rel/model.safetensors",)),
    "a list": ("rel", "rel", ("@models.txt",)),
    "its checkpoint": ("rel", "rel", ("checkpoint-1",)),
    "a file of its checkpoint": ("rel", "rel", ("checkpoint-1/model.safetensors",)),
    "its export": ("rel", "rel", ("onnx/model.safetensors",)),
    "recursive": ("rel", "rel", ("-r", ".")),
    "from the checkpoint": ("rel", "rel/checkpoint-1", (".",)),
    "from the checkpoint, to its model": ("rel", "rel/checkpoint-1", ("..",)),
    "from a checkpoint with settings": ("rel/checkpoint-1", "rel/checkpoint-1", ("../model.safetensors",)),
    "from a directory of notes": ("rel", "rel/logs", ("..",)),
    "from a directory with settings in the model": ("rel/logs", "rel/logs", ("../checkpoint-1",)),
    "another model": ("rel", "rel", ("../alone",)),
    "a run without a model of its own": ("run", "run", ("checkpoint-1",)),
    "all of a run": ("run", "run", (".",)),
    "a file of a run": ("run", "run", ("checkpoint-1/model.safetensors",)),
    "a run by a pattern": ("run", "run", ("checkpoint-*",)),
    "through a symlink": ("rel", "link", (".",)),
    "through a symlink, the file": ("rel", "link", ("model.safetensors",)),
    "a symlink to the model": ("rel", "rel", ("{top}/link",)),
}


def test_no_settings_of_a_model_silence_it(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the settings lie in a download, and however the model is given: the finding counts, and a note says so.

    Every report says that no settings file decided.
    """
    for folder_name in ("rel", "rel/checkpoint-1", "rel/onnx", "run/checkpoint-1", "alone"):
        shutil.copytree(models / "llama-diverged", tmp_path / folder_name)
    (tmp_path / "rel" / "logs").mkdir()
    (tmp_path / "link").symlink_to("rel")
    (tmp_path / "rel" / "models.txt").write_text("model.safetensors\n")
    for name, text in SILENCE.items():
        for placement, (where, cwd, words) in PLACEMENTS.items():
            file = tmp_path / where / name
            file.write_text(text)
            monkeypatch.chdir(tmp_path / cwd)
            asked = [word.format(top=tmp_path) for word in words]
            result = run("check", "--format", "json", *asked)
            answer = json.loads(result.stdout)
            assert result.exit_code == 1, f"{name}: {placement}"
            assert answer["settings"] is None and answer["waived"] == 0, f"{name}: {placement}"
            assert "is inside the model directory, so it is ignored" in result.stderr, f"{name}: {placement}"
            file.unlink()


def test_a_mistyped_model_leaves_the_settings(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is there, so the settings beside it did not come with one."""
    shutil.copytree(models / "llama-diverged", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tieconv.toml").write_text('ignore = ["TIE001"]\n')
    result = run("check", "model", "nomodel", "--format", "json")
    assert result.exit_code == 2 and json.loads(result.stdout)["settings"] == "tieconv.toml", result.output


def test_settings_end_at_the_root_of_the_repository(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file above the repository does not count; a file of the repository counts for models that it holds."""
    shutil.copytree(models / "llama-diverged", tmp_path / "repo" / "models" / "a")
    (tmp_path / "repo" / ".git").mkdir()
    (tmp_path / "tieconv.toml").write_text('ignore = ["ALL"]\n')
    for cwd, words in (("repo", ("models/a",)), ("repo", (".",)), ("repo/models", ("a/model.safetensors",))):
        monkeypatch.chdir(tmp_path / cwd)
        assert run("check", *words).exit_code == 1, cwd
        (tmp_path / "repo" / "tieconv.toml").write_text('ignore = ["ALL"]\n')
        assert ok("check", *words).stderr.rstrip().endswith("tieconv.toml"), cwd
        (tmp_path / "repo" / "tieconv.toml").unlink()


def test_settings_above_count_only_in_a_repository(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes to `/tmp` decides about no run below it, also with a `.git` there. The working directory counts."""
    shared, work = tmp_path / "shared", tmp_path / "shared" / "x" / "models"
    shutil.copytree(models / "llama-diverged", work / "a")
    for name, section in (("tieconv.toml", ""), ("pyproject.toml", "[tool.tieconv]\n")):
        text = f'{section}ignore = ["ALL"]\n'
        for plant, mode in ((False, 0o755), (False, 0o1777), (True, 0o1777)):
            shared.chmod(mode)
            (shared / name).write_text(text)
            if plant:
                (shared / ".git").mkdir(exist_ok=True)
            for cwd, words in (("x", ("models/a",)), ("x/models", ("a",)), ("x/models/a", (".",))):
                monkeypatch.chdir(shared / cwd)
                result = run("check", "--format", "json", *words)
                assert (result.exit_code, json.loads(result.stdout)["settings"]) == (1, None), (name, plant, mode, cwd)
        shared.chmod(0o755)  # with the planted .git, a repository of its owner
        monkeypatch.chdir(shared / "x")
        assert ok("check models/a").stderr.rstrip().endswith(name)
        (shared / name).unlink()
        (shared / ".git").rmdir()
        Path(name).write_text(text)
        assert ok("check models/a").stderr.rstrip().endswith(name)
        Path(name).unlink()


def test_a_fleet_obeys_no_settings_of_a_model(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fleet report`, run in the model or in a run directory, judges by the default rules and says so."""
    for folder_name in ("rel", "run/checkpoint-1"):
        shutil.copytree(models / "llama-diverged", tmp_path / folder_name)
    for cwd, model in (("rel", "."), ("run", "checkpoint-1")):
        monkeypatch.chdir(tmp_path / cwd)
        Path("tieconv.toml").write_text('ignore = ["ALL"]\n')
        ok("fleet check", model, "-o", tmp_path / f"runs-{cwd}")
        result = ok("fleet report --json", tmp_path / f"runs-{cwd}")
        answer = json.loads(result.stdout)
        assert (answer["failed"], answer["settings"]) == (1, None), cwd
        assert "tieconv.toml is inside the model directory" in result.stderr, cwd
        assert "no settings file" in ok("fleet report", tmp_path / f"runs-{cwd}").stdout, cwd


def test_every_report_names_the_settings(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each format, with a file and without one."""
    monkeypatch.chdir(tmp_path)
    for name in ("", "rules.toml"):
        if name:
            Path(name).write_text('fail-on = "error"\n')
        for form in ("text", "json", "jsonl", "sarif", "github", "junit", "markdown"):
            result = ok("check --format", form, *(["--config", name] if name else []), models / "llama-tied")
            shown = result.stderr if form == "text" else result.stdout
            without = dict.fromkeys(("text", "github"), "The check passed.\n")
            without |= dict.fromkeys(("json", "jsonl"), '"settings": null')
            assert (name or without.get(form, "o settings file")) in shown, f"{form} {name}"


# --- models below a model, and directories of GGUF files --------------------------------------------------


def test_models_below_a_model_are_counted(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format names what was found and not checked; with --recursive nothing is left."""
    shutil.copytree(models / "llama-tied", tmp_path / "rel")
    shutil.copytree(models / "llama-diverged", tmp_path / "rel" / "checkpoint-100")
    monkeypatch.chdir(tmp_path)
    both = shutil.copytree(models / "llama-tied", tmp_path / "both")
    shutil.copy(models.parent / "exported" / "optimum-llama" / "model.onnx", both)
    assert json.loads(ok("check --json both").stdout)["not_checked"] == ["both/model.onnx"]
    answer = json.loads(run("check --json --recursive both").stdout)
    assert [model["source"] for model in answer["models"]] == ["both", "both/model.onnx"] and not answer["not_checked"]
    for form in ("text", "json", "jsonl", "sarif", "github", "junit", "markdown"):
        result = ok("check --format", form, "rel")
        assert "checkpoint-100" in result.stdout, form
        assert "The check passed. 1 model below was not checked" in result.output, form
    assert json.loads(ok("check --json rel").stdout)["not_checked"] == ["rel/checkpoint-100"]
    answer = json.loads(run("check --json --recursive rel").stdout)
    assert (answer["not_checked"], answer["failed"], len(answer["models"])) == ([], 1, 2)


def test_each_gguf_file_is_checked(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release holds one file for each quantisation. Parts are one model, and a projector is none."""
    data = gguf([("token_embd.weight", (8, 32), F32, bytes(1024))])
    monkeypatch.chdir(tmp_path)

    def checked(*words: str) -> list[str]:
        answer = json.loads(run("check --json", *words).stdout)
        return [model["source"] for model in answer["models"] if words[0] != "rel" or not model["failure"]]

    Path("rel").mkdir()
    for name in ("m-Q4_K_M", "m-Q8_0", "mmproj-m"):
        Path(f"rel/{name}.gguf").write_bytes(data)
    assert checked("rel") == ["rel/m-Q4_K_M.gguf", "rel/m-Q8_0.gguf"]
    assert checked("re*") == ["rel/m-Q4_K_M.gguf", "rel/m-Q8_0.gguf"]
    assert refused("inspect rel") == "rel holds 2 GGUF models: m-Q4_K_M.gguf, m-Q8_0.gguf"
    for number in (1, 2):
        Path(f"rel/big-{number:05}-of-00002.gguf").write_bytes(data)
    assert checked(".") == ["rel/big-00001-of-00002.gguf", "rel/m-Q4_K_M.gguf", "rel/m-Q8_0.gguf"]
    shutil.copytree(models / "llama-tied", "rel", dirs_exist_ok=True)
    assert checked(".") == ["rel", "rel/big-00001-of-00002.gguf", "rel/m-Q4_K_M.gguf", "rel/m-Q8_0.gguf"]
    Path("loose").mkdir()  # one loose file does not stand for the models below it
    Path("loose/m.gguf").write_bytes(data)
    for name in ("a", "b"):
        shutil.copytree(models / "llama-diverged", f"loose/{name}")
    assert checked("loose") == ["loose", "loose/a", "loose/b"]
