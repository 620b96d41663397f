"""`tieconv fleet inspect`, `analyze`, `convert`, `export`, `parity`: the command's own answer for each model."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from hypothesis import given, strategies as st

from tests import children
from tests.children import wait_until
from tests.cli.run import ok, refused, run
from tests.gate.conftest import NAMES
from tests.patience import HANGS
from tests.schemas import validate
from tieconv.checkpoint.results.fleet import FleetProgress
from tieconv.cli import fleet as verbs, main
from tieconv.cli.fleet import Answer, run_command
from tieconv.gate.fleet_runs import output_of


def lines(verb: str, runs: str = "runs") -> dict[str, dict[str, object]]:
    """The last line of each model. Every line fits the schema."""
    entries = [json.loads(line) for line in Path(runs, f"{verb}.jsonl").read_text().splitlines()]
    for entry in entries:
        validate(entry, "fleet-result")
    return {entry["source"]: entry for entry in entries}


def tree(directory: str | Path) -> dict[str, bytes]:
    files = (path for path in Path(directory).rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def wait_for_the_end(group: int) -> None:
    """Return when no process of a group runs. The processes of a killed driver end by themselves."""

    def has_ended() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(has_ended)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jobs", ["1", "3"])
@pytest.mark.parametrize(("verb", "options"), [("inspect", ["--depth", "full", "--consumers"]), ("analyze", [])])
def test_the_answer_is_the_commands(fleet: Path, verb: str, options: list[str], jobs: str) -> None:
    """The document of each model is what the command prints for it alone."""
    result = ok(f"fleet {verb} fleet -o runs -j {jobs} --", *options)
    assert result.stdout == ""
    assert result.stderr.startswith("3 models: 3 run, 0 unchanged; ") and result.stderr.endswith(
        f"results: runs/{verb}.jsonl\n"
    )
    entries = lines(verb)
    assert sorted(entries) == sorted(f"fleet/{name}" for name in NAMES)
    for source, entry in entries.items():
        assert entry["report"] == json.loads(ok(f"{verb} --json", source, *options).stdout)
        assert (entry["exit_code"], entry["error"], entry["output"]) == (0, None, None)
        assert entry["bytes"] == sum(path.stat().st_size for path in Path(source).iterdir())
    assert json.loads(Path(f"runs/{verb}.list").read_text()) == sorted(f"fleet/{name}" for name in NAMES)


def test_only_what_changed_runs_again(fleet: Path) -> None:
    """A changed model, another option, and a model without an answer; not an unchanged one."""
    ok("fleet inspect fleet -o runs")
    assert "0 run, 3 unchanged" in ok("fleet inspect fleet -o runs").stderr
    os.utime(fleet / "t5" / "config.json", (1, 1))
    assert "1 run, 2 unchanged" in ok("fleet inspect fleet -o runs").stderr
    assert "3 run, 0 unchanged" in ok("fleet inspect fleet -o runs -- --depth full").stderr
    (fleet / "t5" / "model.safetensors").write_bytes(b"x")
    for _ in range(2):
        result = run("fleet inspect fleet -o runs -- --depth full")
        assert (result.exit_code, result.stderr.split("; ")[0]) == (
            2, "3 models: 1 run, 2 unchanged, 1 without an answer",
        )  # fmt: skip
    entry = lines("inspect")["fleet/t5"]
    assert (entry["exit_code"], entry["report"]) == (2, None)
    alone = run("inspect fleet/t5")
    assert alone.stderr == "error: {message}\nhint: {hint}\n".format(**entry["error"])  # type: ignore[arg-type]


def test_copies_are_below_the_run(fleet: Path) -> None:
    """The bytes of the command's own copy. A changed model gets another directory, and the first copy stays."""
    ok("fleet convert --to torch fleet/t5 -o runs -j 2 fleet/bart")  # options of both commands, in any order
    first = lines("convert")
    for source, entry in first.items():
        ok("convert --to torch -q", source, "-o", f"alone-{Path(source).name}")
        assert tree(str(entry["output"])) == tree(f"alone-{Path(source).name}")
    assert sorted(os.listdir("runs/convert")) == sorted(Path(str(entry["output"])).name for entry in first.values())
    before = tree("runs/convert")
    os.utime(fleet / "t5" / "config.json", (1, 1))
    ok("fleet convert fleet/t5 fleet/bart -o runs -- --to torch")
    assert lines("convert")["fleet/t5"]["output"] != first["fleet/t5"]["output"]
    assert tree("runs/convert").items() > before.items()


def test_a_deleted_copy_is_made_again(fleet: Path) -> None:
    """Not only a directory that is gone: also one with a shorter file, or a symlink in its place."""
    line = "fleet convert fleet/t5 -o runs -- --to torch"
    assert "1 run, 0 unchanged" in ok(line).stderr
    assert "0 run, 1 unchanged" in ok(line).stderr
    (copy,) = Path("runs/convert").iterdir()
    whole = tree(copy)
    damages = (lambda: shutil.rmtree(copy), lambda: os.truncate(copy / "config.json", 1))
    for number, damage in enumerate(damages):
        damage()
        assert "1 run, 0 unchanged" in ok(line).stderr, number
        assert tree(copy) == whole, number
    shutil.rmtree(copy)
    shutil.copytree(fleet / "t5", "victim")
    copy.symlink_to(Path("victim").absolute())
    before = tree("victim")
    result = run(line)
    assert result.exit_code == 2 and "is a symlink" in result.stderr, result.stderr
    assert tree("victim") == before


@pytest.mark.slow
def test_a_killed_driver_goes_on(fleet: Path) -> None:
    """SIGKILL in the middle: every copy is whole or absent, and the next run writes the missing ones alone."""
    for number in range(60):
        shutil.copytree(fleet / "bart", fleet / f"copy-{number:02}")
    words = ["fleet", "convert", "fleet", "-o", "runs", "-j2", "--", "--to", "torch"]
    driver = children.start([sys.executable, "-P", "-m", "tieconv", *words], start_new_session=True)
    results = Path("runs/convert.jsonl")
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 10, driver)
    driver.kill()
    driver.wait()
    wait_for_the_end(driver.pid)
    done = results.read_bytes().count(b"\n")
    assert f"{63 - done} run, {done} unchanged" in ok(" ".join(words)).stderr
    entries = lines("convert")
    assert len(entries) == 63
    whole = {tuple(sorted(tree(str(entry["output"])).items())) for key, entry in entries.items() if "copy-" in key}
    assert len(whole) == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("inspect fleet/t5", 0, None),
        ("diff fleet/t5 fleet/bart", 1, None),
        ("inspect nowhere", 2, "nowhere: no such file or directory"),
        ("inspect --nope fleet/t5", 2, "no such option"),
    ],
)
def test_a_command_is_answered_in_this_process(fleet: Path, words: str, code: int, message: str | None) -> None:
    """The exit code, with a document or with why there is none."""
    answer, document, failure = run_command(words.split())
    assert (answer, bool(document)) == (code, message is None)
    assert (failure is None) == (message is None) and (message or "") in (failure or ("",))[0]


def _deadly(arguments: Sequence[str]) -> Answer:
    if any("bart" in word for word in arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_command(arguments)


def test_a_killed_process_costs_its_model(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one job too: nothing runs in the driver."""
    monkeypatch.setattr(verbs, "run_command", _deadly)
    result = run("fleet inspect fleet -o runs")
    assert result.exit_code == 2
    assert "  fleet/bart: the process that worked on it was killed\n" in result.stderr
    assert {source: entry["exit_code"] for source, entry in lines("inspect").items()} == {
        "fleet/bart": None, "fleet/llama-duplicated": 0, "fleet/t5": 0,
    }  # fmt: skip


def _failing(arguments: Sequence[str]) -> Answer:
    return (1 if "fleet/t5" in arguments else 0), "{}", None


def test_exit_code_1_is_an_answer(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept, and it decides the exit code of an unchanged run too."""
    monkeypatch.setattr(verbs, "run_command", _failing)
    for unchanged in (0, 3):
        result = run("fleet export fleet -o runs")
        assert result.exit_code == 1
        assert f"{unchanged} unchanged, 1 with exit code 1" in result.stderr
        assert "  fleet/t5: exit code 1" in result.stderr


def _writing(arguments: Sequence[str]) -> Answer:
    output = arguments[arguments.index("-o") + 1]
    first = not os.path.exists(output)
    os.makedirs(output, exist_ok=True)
    return (0 if first else 1), "{}", None


def test_an_output_belongs_to_its_result(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed before its line finds its output. If the command fails now, the line names none."""
    monkeypatch.setattr(verbs, "run_command", _writing)
    ok("fleet export fleet/t5 -o runs")
    assert Path(str(lines("export")["fleet/t5"]["output"])).is_dir()
    Path("runs/export.jsonl").unlink()
    assert run("fleet export fleet/t5 -o runs").exit_code == 1
    assert lines("export")["fleet/t5"]["output"] is None


def _noisy(arguments: Sequence[str]) -> Answer:
    return 2, "", (f"fault {arguments[-1]}", "hint")


def test_few_failures_are_named(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "run_command", _noisy)
    for number in range(30):
        shutil.copytree(fleet / "t5", fleet / f"copy-{number:02}")
    for options in ("-j 2", "-q"):  # a model without a result is an error, which -q prints
        result = run(f"fleet inspect fleet -o runs {options}")
        assert result.stderr.count(": fault ") == 20 and "… and 13 more" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("inspect fleet -o runs -- --depht full", "no such option"),
        ("inspect fleet -o runs -- fleet/t5", "got unexpected extra argument (MODEL)"),
        ("parity fleet -o runs -- fleet/t5", "got unexpected extra argument (MODEL)"),
        ("convert fleet -o runs", "missing option '--to'"),
        ("convert fleet -o runs --to=torch --in-place", "--in-place cannot be used here"),
        ("export fleet -o runs --precision fp7", "'fp7' is not one of"),
        ("convert fleet -o runs -- --to torch --in-place", "--in-place cannot be used here"),
        ("convert fleet -o runs -- --to torch -o x", "--output cannot be used here"),
        ("export fleet -o runs -- --dry-run", "--dry-run cannot be used here"),
        ("export fleet -o runs -- --overwrite", "--overwrite cannot be used here"),
        ("analyze fleet -o runs -- --html=a.html", "--html cannot be used here"),
        ("analyze fleet -o runs -- --resume a", "--resume cannot be used here"),
        ("analyze fleet -o runs -- --figures a", "--figures cannot be used here"),
        ("parity fleet -o runs -- --html a.html", "--html cannot be used here"),
        ("inspect -o runs", "missing argument 'SOURCE...'"),
        ("parity fleet -o runs", "runs holds no graph"),
    ],
)
def test_refused_before_anything_runs(fleet: Path, words: str, message: str) -> None:
    assert message in refused(f"fleet {words}")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("check fleet runs", "check fleet -o runs"),
        ("check a b runs", "check a b -o runs"),
        ("inspect fleet --depth header", "inspect fleet -o RUNS"),
    ],
)
def test_the_directory_of_results_may_be_meant_by_the_last_source(fleet: Path, words: str, command: str) -> None:
    result = run(f"fleet {words}")
    assert result.exit_code == 2 and f"hint: name a directory of results: tieconv fleet {command}; " in result.stderr


def test_parity_needs_a_graph_of_the_model(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on the exported graph, again for another graph, and says which model has none."""
    monkeypatch.setattr(verbs, "run_command", _failing)
    Path("runs/export").mkdir(parents=True)
    graphs = {}
    for number, precision in enumerate(("fp32", "fp16")):
        run(f"fleet export fleet/t5 -o runs -- --precision {precision}")
        entry = lines("export")["fleet/t5"]
        graphs[number] = {**entry, "output": f"runs/export/graph-{number}"}
    Path("runs/export.jsonl").write_text(json.dumps(graphs[0]) + "\n")
    result = run("fleet parity fleet/t5 fleet/bart -o runs")
    assert (result.exit_code, "  fleet/bart: no graph of it was exported" in result.stderr) == (2, True)
    assert "1 run, 1 unchanged" in run("fleet parity fleet/t5 fleet/bart -o runs").stderr  # bart is tried again
    Path("runs/export.jsonl").write_text("".join(json.dumps(graphs[number]) + "\n" for number in (0, 1)))
    assert "2 run, 0 unchanged" in run("fleet parity fleet/t5 fleet/bart -o runs").stderr


def test_a_document_beside_other_text(monkeypatch: pytest.MonkeyPatch, models: Path) -> None:
    """What a library prints before it is dropped; what is no document is a failure with the command to look."""
    from tieconv.cli import inspect

    monkeypatch.setattr(inspect, "document", lambda text: print(f"a library speaks\n{text}"))
    code, document, failure = run_command(["inspect", str(models / "t5")])
    assert (code, json.loads(document)["schema"], failure) == (0, "tieconv.inspect/1", None)
    monkeypatch.setattr(inspect, "document", lambda text: print("{half"))
    code, document, failure = run_command(["inspect", "--", str(models / "t5")])
    assert failure is not None and failure[1].startswith("run it alone: tieconv inspect -- ")
    assert (code, document) == (0, "")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), st.text(max_size=5))
def test_an_output_is_one_directory_below_the_run(source: str, fingerprint: str) -> None:
    """Whatever the model is called; another content has another one."""
    path = output_of("runs/export", source, fingerprint, ())
    assert re.fullmatch(r"runs/export/[A-Za-z0-9_][A-Za-z0-9._-]*-[0-9a-f]{10}", path)
    assert len(os.path.basename(path)) < 100
    assert path != output_of("runs/export", source, f"{fingerprint}x", ())
    assert path != output_of("runs/export", source, fingerprint, ("--precision", "fp16"))


def test_parts_share_a_directory(fleet: Path) -> None:
    for part in (1, 2):
        ok(f"fleet inspect fleet -o runs --part {part}/2")
    assert len(lines("inspect-1-of-2")) + len(lines("inspect-2-of-2")) == 3


def test_the_query_of_the_guide(fleet: Path) -> None:
    """DuckDB reads the lines, and takes the last one of each model."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB runs the query of the guide")
    guide = (Path(__file__).parents[2] / "docs/guides/fleets.md").read_text(encoding="utf-8")
    [query] = [text for text in re.findall(r"```sql\n(.*?)```", guide, re.DOTALL) if "inspect.jsonl" in text]
    ok("fleet inspect fleet -o runs")
    os.utime(fleet / "t5" / "config.json", (1, 1))
    ok("fleet inspect fleet -o runs")
    rows = duckdb.sql(query.replace("inspect.jsonl", "runs/inspect.jsonl")).fetchall()
    assert rows == [("fleet/llama-duplicated", 12288)]


@pytest.mark.slow
def test_graphs_and_their_parity(fleet: Path) -> None:
    """Exported and measured; with the weights of another model, parity fails and the run exits with 1."""
    result = run("fleet export fleet/llama-duplicated fleet/t5 -o runs -- --provider cpu")
    assert result.exit_code == 0, result.stderr
    assert all(Path(str(entry["output"]), "export.json").exists() for entry in lines("export").values())
    ok("fleet parity fleet/llama-duplicated fleet/t5 -o runs -- --provider cpu")
    assert {entry["report"]["verdict"] for entry in lines("parity").values()} == {"passed"}  # type: ignore[index]
    weights = fleet / "llama-duplicated" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-20_000] ^= 0x40  # an exponent
    weights.write_bytes(content)
    result = run("fleet parity fleet/llama-duplicated fleet/t5 -o runs -- --provider cpu")
    assert (result.exit_code, "1 unchanged, 1 with exit code 1" in result.stderr) == (1, True)


def _locking(arguments: Sequence[str]) -> Answer:
    """Hold what `multiprocessing` must remove when this process ends, as a progress bar of a library does."""
    from multiprocessing import Lock

    _locking.lock = Lock()  # type: ignore[attr-defined]
    if arguments[-1] == "fleet/t5":
        Path("started").touch()
        time.sleep(HANGS)
    return 0, "{}", None


@pytest.mark.parametrize("model", ["fleet/bart", "fleet/t5"])
def test_nothing_is_printed_at_the_end(fleet: Path, model: str) -> None:
    """Neither after a run nor after Ctrl-C, which ends the processes at once."""
    program = (
        "import sys; from tests.gate import test_fleet_commands as tests; from tieconv.cli import main; "
        "from tieconv.cli import fleet; fleet.run_command = tests._locking; main()"
    )
    words = [sys.executable, "-c", program, "fleet", "inspect", model, "-o", "runs", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    driver = children.start(words, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    if model == "fleet/t5":
        wait_until(Path("started").exists, driver)
        os.killpg(driver.pid, signal.SIGINT)
    assert driver.communicate(timeout=HANGS)[1] == ("interrupted\n" if model == "fleet/t5" else "")
    assert driver.returncode == (130 if model == "fleet/t5" else 0)


def _waiting(_: Sequence[str]) -> Answer:
    with open("started", "a") as file:
        file.write("x")
    wait_until(Path("go").exists)
    return 0, "{}", None


def test_an_ignored_interrupt_ends_no_worker(fleet: Path) -> None:
    """Under `nohup`, and in the background of a script, Ctrl-C is meant for other programs."""
    program = (
        "from tests.gate import test_fleet_commands as tests; from tieconv.cli import main; "
        "from tieconv.cli import fleet; fleet.run_command = tests._waiting; main()"
    )
    words = [sys.executable, "-c", program, "fleet", "inspect", "fleet/t5", "-o", "runs", "-q"]
    driver = children.start(
        words,
        prepare=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    wait_until(Path("started").exists, driver)
    os.killpg(driver.pid, signal.SIGINT)
    Path("go").touch()
    assert driver.wait(HANGS) == 0
    assert lines("inspect")["fleet/t5"]["exit_code"] == 0
    assert Path("started").read_text() == "x", "a second worker had to take the model"


@pytest.mark.parametrize(
    "change",
    [{"exit_code": "x"}, {"error": []}, {"error": {"message": ""}}, {"seconds": None}, {"asked": 1}, {"schema": "x"}],
)
def test_a_line_of_another_type_is_refused(fleet: Path, change: dict[str, object]) -> None:
    """With the number of the line; a deeply nested one too."""
    ok("fleet inspect fleet/t5 -o runs")
    results = Path("runs/inspect.jsonl")
    entry = json.loads(results.read_text()) | {"error": {"message": "m", "hint": "h"}} | change
    results.write_text(json.dumps(entry) + "\n")
    assert "is not a tieconv.fleet-result/1 file: line 1 cannot be read" in refused("fleet inspect fleet/t5 -o runs")
    results.write_text("[" * 100_000 + "\n")
    assert "line 1 cannot be read" in refused("fleet inspect fleet/t5 -o runs")


def test_a_fleet_run_leaves_the_help_of_its_verb() -> None:
    """Click makes a help option once: a fleet's look at the options of `analyze` must not make one without `-h`."""
    context = click.Context(main)
    command = main.get_command(context, "analyze")
    assert command is not None
    command._help_option = None  # as in a process that has shown no help
    with context:
        verbs._check("analyze", ())
    assert "-h, --help" in ok("analyze --help").stdout


def test_the_rates_of_a_run() -> None:
    """Models a second, or seconds a model where one takes longer; nothing yet is no division by zero."""
    megabytes = 30_000_000
    assert verbs.speed(FleetProgress(9, finished=9, bytes=megabytes), 3) == "3 models/s, 10 MB/s"
    assert verbs.speed(FleetProgress(9, finished=2, bytes=megabytes), 3) == "1.5 s a model, 10 MB/s"
    assert verbs.speed(FleetProgress(9), 0) == "0 models/s, 0 B/s"
