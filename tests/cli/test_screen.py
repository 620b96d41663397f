"""What goes to which stream: results, plans, progress, `-q`, `-v` and colour."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.cli.run import ok, run
from tieconv.checks.registry import RULES
from tieconv.cli import screen, screen as progress

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
COMMAND = [sys.executable, "-m", "tieconv"]


def on_terminal(*words: str | Path, env: dict[str, str] | None = None) -> tuple[str, int]:
    """Everything that the command writes to a terminal, and its exit code."""
    leader, follower = pty.openpty()
    keep = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE")}
    environment = keep | {"TERM": "xterm-256color", "COLUMNS": "100"} | (env or {})
    command, null = [*COMMAND, *map(str, words)], subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    data = b""
    while True:
        ready, _, _ = select.select([leader], [], [], 600)
        try:
            chunk = os.read(leader, 65536) if ready else b""
        except OSError:  # Linux ends a terminal whose other side is closed with EIO
            chunk = b""
        if not chunk:
            break
        data += chunk
    os.close(leader)
    return data.decode(), process.wait()


@pytest.mark.parametrize("line", ["retie", "convert --to torch", "set-tie false --force", "bias zero", "untie"])
def test_a_write_prints_its_plan_on_stderr_first(tmp_path: Path, line: str) -> None:
    """stdout is left to results; the plan comes before the line that says what was written."""
    result = ok(line, MODELS / "llama-duplicated", "-o", tmp_path / "out")
    assert result.stdout == ""
    *plan, end = result.stderr.splitlines()
    assert plan[0].startswith(line.split()[0]) and end.startswith(f"wrote {tmp_path / 'out'}")


def test_the_plan_is_on_the_screen_before_a_byte_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails has shown what it was about to do."""
    full = Mock(side_effect=OSError(28, "No space left on device", "x"))
    monkeypatch.setattr("tieconv.planned.PlannedWrite.execute", full)
    result = run("retie", MODELS / "llama-duplicated", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.index("drop") < result.stderr.index("error: ")


def test_json_of_a_write_is_alone_on_stdout(tmp_path: Path) -> None:
    """`--json` prints the executed plan, and no text plan beside it."""
    result = ok("retie --json", MODELS / "llama-duplicated", "-o", tmp_path / "out")
    assert json.loads(result.stdout)["executed"] is True
    assert len(result.stderr.splitlines()) == 1


def test_a_file_of_the_source_that_stays_is_not_said_to_be_removed(tmp_path: Path) -> None:
    """Only in place is a file removed; elsewhere it is left out of the output."""
    plan = ok("convert --to torch", MODELS / "llama-tied").stdout
    assert "skip " in plan and "remove" not in plan
    out = tmp_path / "model"
    ok("convert --to safetensors", MODELS / "llama-tied", "-o", out)
    in_place = ok("convert --to torch --in-place", out).stderr
    assert "remove " in in_place and "skip " not in in_place


def test_quiet_leaves_results_and_errors(tmp_path: Path) -> None:
    """`-q` before or after the command's name prints no plan of a write, no summary and no hint of what to do."""
    for line in ("retie -q", "-q retie", "--quiet retie"):
        assert run(line, MODELS / "llama-duplicated", "-o", tmp_path / line.replace(" ", "")).output == ""
        result = ok(line, MODELS / "llama-duplicated")
        assert result.stderr == "" and "drop" in result.stdout
    result = run("check -q", MODELS / "llama-duplicated")
    assert (result.exit_code, result.stderr) == (1, "") and "TIE002" in result.stdout
    assert "error: " in run("-q retie", MODELS / "llama-diverged").stderr


def test_quiet_of_one_command_is_forgotten_by_the_next() -> None:
    """Commands that run in one process, as a test suite runs them, do not share options."""
    ok("retie -q", MODELS / "llama-duplicated")
    assert "nothing was written" in ok("retie", MODELS / "llama-duplicated").stderr


def test_verbose_says_how_long_each_step_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its peak memory; without `-v` nothing of it is printed."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=9_760_000))
    loud = ok("retie -v", MODELS / "llama-duplicated", "-o", tmp_path / "a").stderr
    assert "write and verify: " in loud and "peak memory 9.99 GB" in loud
    assert "peak memory" not in ok("retie", MODELS / "llama-duplicated", "-o", tmp_path / "b").stderr


COLOURED = "\x1b[1mretie"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "env", "coloured"),
    [
        ((), {}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "0"}, False),
        ((), {"CLICOLOR_FORCE": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        (("--color", "auto"), {}, False),
    ],
)
def test_colour_in_a_pipe(words: tuple[str, ...], env: dict[str, str], coloured: bool) -> None:
    """`--color` decides, then NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE; a pipe has none of its own accord."""
    clean = {key: value for key, value in os.environ.items() if "COLOR" not in key}
    for order in ([*words, "retie"], ["retie", *words]):
        command = [*COMMAND, *order, str(MODELS / "llama-duplicated")]
        done = subprocess.run(command, env=clean | env, capture_output=True, text=True, check=True)
        assert (COLOURED in done.stdout) == coloured, done.stdout


def test_an_error_is_coloured_as_asked() -> None:
    """The error line follows the same options as the result."""
    clean = {key: value for key, value in os.environ.items() if "COLOR" not in key}
    for words, coloured in ((["--color", "always"], True), ([], False)):
        command = [*COMMAND, *words, "retie", str(MODELS / "llama-diverged")]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
        assert done.stderr.startswith("\x1b[31merror" if coloured else "error: "), done.stderr


def test_colour_on_a_terminal() -> None:
    """On by itself, off by `--color never` and NO_COLOR."""
    model = MODELS / "llama-duplicated"
    assert COLOURED in on_terminal("retie", model)[0]
    assert COLOURED not in on_terminal("retie", model, "--color", "never")[0]
    assert COLOURED not in on_terminal("retie", model, env={"NO_COLOR": "1"})[0]


class Terminal:
    """A stderr that says it is a terminal and keeps what is written."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        return

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stderr as a terminal of 100 columns, and no patience: each tick is drawn.

    No fixture: pytest puts its own stderr in place between a fixture and its test.
    """
    screen.reset()
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "_REFRESH", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return made


def test_progress_shows_bytes_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two ticks rich knows a rate: bytes done, bytes in all, bytes a second and the time left are drawn."""
    drawn = terminal(monkeypatch)
    with progress.byte_progress("retie") as tick:
        for done in range(0, 2_000_000_000, 500_000_000):
            tick(done, 2_000_000_000)
    assert "retie" in drawn.text and "1.5/2.0 GB" in drawn.text
    assert "/s" in drawn.text and "left" in drawn.text
    monkeypatch.setenv("COLUMNS", "30")
    assert progress.width(drawn) == 40  # type: ignore[arg-type]


def test_progress_names_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export says that it loads torch before anything else."""
    drawn = terminal(monkeypatch)
    with progress.stage_progress("export") as stage:
        stage("loading torch", 0, 1)
        stage("tracing the graph", 1, 6)
    assert drawn.text.index("export: loading torch") < drawn.text.index("export: tracing the graph")


def test_a_log_names_each_step_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, `-v` prints a line for a step, and nothing prints one without `-v`."""
    for verbose, lines in (True, ["export: loading torch", "export: tracing the graph"]), (False, []):
        monkeypatch.setitem(progress._asked, "verbose", verbose)
        with progress.stage_progress("export") as stage:
            for done in range(2):
                stage("loading torch", done, 2)
            stage("tracing the graph", 1, 6)
        assert capsys.readouterr().err.splitlines() == lines


def test_a_silent_step_shows_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer draws the time of a step that reports nothing. With a total, the time left is shown."""
    before = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    drawn = terminal(monkeypatch)
    monkeypatch.setattr(progress, "SECOND", 0.3)
    with progress.stage_progress("export") as stage:
        stage("tracing the graph", 0, 0)
        time.sleep(1.4)
        silent = drawn.text
        for done in range(3):
            stage("running the graph", done, 10)
            time.sleep(0.05)
    assert "0:00:01" in silent and "left" not in silent
    assert re.search(r"running the graph.*0:00:00.* left", drawn.text[len(silent) :])
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == before


def test_progress_is_not_drawn_in_a_pipe_or_for_quick_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of it reaches a log; on a terminal a write of milliseconds draws no bar."""
    with progress.byte_progress("retie") as tick:
        tick(1, 1)
    assert capsys.readouterr().err == ""
    text, code = on_terminal("inspect", MODELS / "llama-duplicated")
    assert code == 0 and "━" not in text


@pytest.mark.slow
@pytest.mark.needs("torch", "onnx")
def test_an_export_says_which_step_it_is_in(tmp_path: Path) -> None:
    """On a terminal the steps are named, the first of them before torch is there."""
    text, code = on_terminal("export", MODELS / "llama-tied", "-o", tmp_path / "out", "--no-parity")
    assert code == 0, text
    steps = ["loading torch", "loading the model", "tracing the graph", "storing the tied matrix once", "writing"]
    positions = [text.index(f"export: {step}") for step in steps]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("info", "did you mean tieconv inspect?"),
        ("show", "did you mean tieconv inspect?"),
        ("lint", "did you mean tieconv check?"),
        ("repair", "did you mean tieconv check --fix?"),
        ("verify", "did you mean tieconv check?"),
        ("retye", "did you mean tieconv retie?"),
        ("fix", "did you mean tieconv check --fix?"),
        ("help frobnicate", "tieconv --help lists the commands"),
        ("explain TIE01", "did you mean TIE001 (different-values)"),
        ("explain tie1", "did you mean TIE001 (different-values)"),
        ("explain VOC1", "did you mean VOC001 (rows)"),
        ("explain random", "CON001 (loader-random-head)"),
    ],
)
def test_a_slip_is_answered_with_the_likely_command(line: str, message: str) -> None:
    """Exit 2, and the hint starts with what was most likely meant."""
    result = run(line)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(f"hint: {message}") or message in result.stderr.splitlines()[-1]


def test_words_of_other_programs_do_what_is_meant() -> None:
    """`rules RULE` and `check --json` as ruff takes them."""
    codes = ["TIE001", *(rule.code for rule in RULES if rule.code.startswith("BIA"))]
    assert [line.split()[0] for line in ok("rules TIE001 BIA").stdout.splitlines()] == codes
    model = MODELS / "llama-tied"
    assert ok("check --json", model).stdout == ok("check --format json", model).stdout
    both = run("check --json --format text", model)
    assert both.exit_code == 2 and "--json and --format cannot be used together" in both.stderr


def test_a_config_is_answered_with_its_directory() -> None:
    """A file that lies beside weights names the directory to give."""
    result = run("inspect", MODELS / "llama-tied" / "config.json")
    assert result.exit_code == 2
    assert "describes a model but holds no weights" in result.stderr
    assert str(MODELS / "llama-tied") in result.stderr.splitlines()[-1]


def complete(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What fish is offered for the last of ``words``."""
    line = {"COMP_WORDS": f"tieconv {' '.join(words)}", "COMP_CWORD": words[-1]}
    env = os.environ | line | {"_TIECONV_COMPLETE": "fish_complete"}
    code = "import sys; sys.argv[0] = 'tieconv'; from tieconv.cli import main; main(prog_name='tieconv')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_rule_codes_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `explain`, `rules` and `check --select`, where the part after the last comma counts."""
    assert any(line.startswith("plain,TIE001\t") for line in complete(monkeypatch, "explain", "TIE"))
    assert any(line.startswith("plain,BIA001\t") for line in complete(monkeypatch, "rules", "bia"))
    selected = complete(monkeypatch, "check", "--select", "TIE001,BIA")
    assert [line.split("\t")[0] for line in selected][:1] == ["plain,TIE001,BIA001"]


def test_fish_keeps_what_follows_a_comma() -> None:
    """The script splits a completion once, into its kind and the rest."""
    script = ok("completion fish").stdout
    assert 'string split --max 1 "," $completion' in script and 'string split ","' not in script


def test_fix_says_that_a_clean_model_is_clean(tmp_path: Path) -> None:
    """Not that it has no safe remedy."""
    result = ok("check --fix", MODELS / "llama-tied", "-o", tmp_path / "out")
    assert f"{MODELS / 'llama-tied'}: nothing to fix" in result.stderr
    assert "no safe remedy" not in result.stderr


def test_a_report_is_cut_after_the_most_lines_and_characters() -> None:
    """What has exactly as many is whole."""
    most = screen._MAX_CHARACTERS
    assert screen.shortened("a" * most) == "a" * most
    assert screen.shortened("a" * (most + 1)) == "a" * most + "…"
    assert screen.shortened("a\nb\nc", 3) == "a\nb\nc"
    assert screen.shortened("a\nb\nc\nd", 3) == "a\nb\n… and 2 more lines (use --json for all)"


def test_what_libraries_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is escaped and shortened, a continued line indented, an unfinished one kept. stderr gets 40 lines."""
    with screen.escaped_libraries():
        for text in ("a\tb\r\nsecond\n", "unfinished ", "\x1b[2J", f"\n{'x' * 1001}"):
            print(text, end="", file=sys.stderr)
        sys.stderr.writelines(f"{number}\n" for number in range(60))
        assert sys.stdout.write("help\nis not indented\n") == 21
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "help\nis not indented\n"
    assert lines[:3] == ["a    b", "    second", r"unfinished \x1b[2J"] and lines[3].startswith(f"    {'x' * 900}")
    assert len(lines[3]) < 1001 and lines[4:39] == [str(number) for number in range(1, 36)]
    assert lines[39:] == ["… further messages of libraries are not shown"]


def test_a_command_between_colours_is_harmless() -> None:
    """Parts that are harmless alone are escaped if they are not without the colour between them."""
    red = "\x1b[31m"
    assert screen._harmless_line(f"{red}text") == f"{red}text"
    assert screen._harmless_line(f"#{red}#[group]") == r"#\x23[group]"
