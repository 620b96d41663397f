"""Whatever a model holds, no command prints a byte that a terminal or a CI runner obeys."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.output.hostile import EVIL, MARK, faults, on_terminal, piped, write
from tieconv.cli import COMMANDS, main

FOLDERS = ("known", "unknown", "sharded", "torch", "gguf", "adapter", "graph")
WRITERS = ("untie", "retie", "dedup", "set-tie auto", "reindex", "bias zero", "convert --to torch", "resize --to rows")
CALLS = [
    *(f"inspect {folder} --consumers" for folder in FOLDERS),
    *(f"inspect {folder} --json --depth full" for folder in ("known", "graph")),
    *(f"check {folder} --format {form}" for folder in ("known", "unknown") for form in ("text", "github", "markdown")),
    *(f"check {' '.join(FOLDERS)} EVIL --format {form}" for form in ("text", "github", "junit", "sarif", "json")),
    "check known --select EVIL", "check known --baseline baseline.json", "check known --config evil.toml",
    "check known --config settings.toml", "check known --fix -o fixed", "check known --for EVIL",
    *(f"{verb} {folder}" for verb in WRITERS for folder in ("known", "sharded")),
    "resize --to 200 unknown", "resize --to EVIL known", "resize --to 200 known -o out-resize",
    "untie unknown", "retie torch", "dedup torch", "convert unknown --to torch",
    *(f"{verb} graph{more}" for verb in ("dedup", "untie") for more in ("", " -o out --dry-run", " -o out-{verb}")),
    "untie known -o EVIL-out", "retie unknown -o out-retie --json", "dedup known -o /dev/null/EVIL",
    "diff known unknown", "diff known graph", "diff torch sharded", "analyze known", "analyze unknown", "analyze EVIL",
    "analyze known --text text.txt", "analyze unknown --text text.txt", "analyze torch",
    "export known -o graph-out", "export unknown -o graph-out2", "parity graph/model.onnx known",
    "push known hf://org/name --dry-run", "inspect hf://EVIL", "inspect EVIL-absent", "explain EVIL",
    f"fleet check {' '.join(FOLDERS)} EVIL -o runs", "fleet check known -o EVIL-runs", "fleet report EVIL-runs",
    "fleet report runs --since before --no-config", "fleet report runs --since EVIL",
    "fleet report runs --no-config --json",
    "rules --select EVIL", "EVIL", "inspect --EVIL", "completion EVIL", "completion bash", "demo -o known",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write(folder, models)
    for call in ("fleet check known -o before", f"fleet check {' '.join(FOLDERS)} EVIL -o runs"):
        piped(folder, *words(call))
    return folder


def words(call: str) -> list[str]:
    return [word.replace("EVIL", EVIL.replace("/", "_")) for word in call.split(" ")]


def _torch_is_slow(calls: list[str]) -> list[object]:
    """Calls that export or run a model are slow tests."""
    return [
        pytest.param(
            call, marks=[pytest.mark.slow] if call.startswith(("export", "parity", "demo")) or " --text" in call else []
        )
        for call in calls
    ]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("call", _torch_is_slow(CALLS))
def test_piped(home: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; `test_on_a_terminal` and `test_the_names_are_printed` start others."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    received = CliRunner().invoke(main, words(call)).output_bytes
    assert received
    assert faults(received, annotates="github" in call) == [], received[-3000:]


SHOWN = [call for call in CALLS if " --json" not in call]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=[pytest.mark.slow] if n % 6 else []) for n, call in enumerate(SHOWN)]
)
def test_on_a_terminal(home: Path, call: str) -> None:
    received = on_terminal(home, *words(call))
    assert received
    assert faults(received, annotates="github" in call) == [], received[-3000:]


def test_every_command_is_called() -> None:
    assert {word for call in CALLS for word in call.split(" ")[:1]} >= COMMANDS.keys()


@pytest.mark.slow
def test_the_names_are_printed(home: Path) -> None:
    """The test would prove nothing of names that no command shows."""
    for call in (
        "inspect unknown",
        "inspect graph",
        "check unknown",
        "fleet report runs --since before --no-config",
        "inspect sharded",
        "dedup graph",
    ):
        assert MARK.encode() in piped(home, *words(call)), call


def test_faults_are_seen() -> None:
    assert len(faults(EVIL.encode())) >= 6
    assert faults(b"\x1b[?25l\r\x1b[2Kretie  [####]\r\n\x1b[?25h\r\x1b[1A\x1b[2K\n") == []
    assert faults(b"::error file=x,title=a::b\n", annotates=True) == []
    assert faults(b"::error file=x,title=a::b\n") != []
