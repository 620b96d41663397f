"""Two recordings of the same program agree, and a changed answer is reported."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.cases import CASES
from tests.conftest import ROOT
from tests.recorded.__main__ import main
from tests.recorded.compare import ABSENT, KNOWN, Allowed, compare, report, without_sentences
from tests.recorded.models import LIST, Recording, build, commands, record

NAMES = ("llama-tied", "llama-diverged", "bert-mlm", "t5")
INSPECT, RETIE = "inspect MODEL --consumers --json", "retie MODEL --dry-run --json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of six models and their list, as `build` leaves one."""
    root = tmp_path_factory.mktemp("models")
    paths = [f"fixtures/{name}" for name in NAMES]
    for path in paths:
        shutil.copytree(ROOT / "fixtures" / "models" / Path(path).name, root / path)
    for name in ("C01", "C25"):
        build_case = CASES[name].build
        assert build_case is not None
        paths.append(str(build_case(root / "cases" / name).relative_to(root)))
    models = {
        path: {"group": "grid", "path": path, "other": other}
        for path, other in zip(paths, paths[1:] + paths[:1], strict=True)
    }
    (root / LIST).write_text(json.dumps(models))
    return root


@pytest.fixture(scope="module")
def recording(folder: Path) -> Recording:
    return record(folder, build(folder, 1), 1)


@pytest.mark.slow
def test_two_recordings_agree(folder: Path, recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    """Six models, every command: the same answers, whatever process gives them, and no model changes."""
    again = record(folder, build(folder, 1), 2)
    assert len(again["models"]) == 6
    assert list(compare(recording, again)) == []
    assert report([], Allowed([])) == 0
    assert "0 differences" in capsys.readouterr().out


def test_every_command_is_answered(recording: Recording) -> None:
    """No command line is a usage error or fails inside, and each answer is JSON or an error with a hint."""
    for one in recording["models"].values():
        assert list(one["answers"]) == list(commands("grid"))
        for command, digest in one["answers"].items():
            answer = recording["answers"][digest]
            assert "exception" not in answer and "usage: tieconv" not in answer.get("hint", ""), command
            assert (answer["exit"] == 2) == ("error" in answer) == ("hint" in answer), command
            assert (answer["stdout"]["schema"] == "tieconv.error/1") == (answer["exit"] == 2), command


def test_no_path_of_the_machine_is_recorded(folder: Path, recording: Recording) -> None:
    """A recording does not depend on where the models lie."""
    text = json.dumps(recording["answers"])
    assert str(folder) not in text and str(ROOT) not in text
    assert "MODEL" in text


def changed(recording: Recording, command: str, **values: object) -> Recording:
    """The recording with one answer of llama-tied changed."""
    copied: Recording = copy.deepcopy(recording)
    digests = copied["models"]["fixtures/llama-tied"]["answers"]
    new = f"changed to {values}"
    copied["answers"][new] = {**copied["answers"][digests[command]], **values}
    digests[command] = new
    return copied


def test_a_changed_answer_is_reported(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    """An outcome, an exit code, a hint: each with its command, its path, the model and both values."""
    digest = recording["models"]["fixtures/llama-tied"]["answers"][INSPECT]
    stdout = copy.deepcopy(recording["answers"][digest]["stdout"])
    loader = stdout["consumers"][0]
    before, loader["outcome"] = loader["outcome"], "random"
    found = list(compare(recording, changed(recording, INSPECT, stdout=stdout)))
    path = f"stdout.consumers[{loader['name']} {loader['version']}].outcome"
    assert [(one.command, one.path, one.before, one.after) for one in found] == [(INSPECT, path, before, "random")]
    assert report(found, Allowed([])) == 1
    out = capsys.readouterr().out
    assert f"1 × {INSPECT}: {path}\n    fixtures/llama-tied\n" in out

    found = list(compare(recording, changed(recording, RETIE, exit=7, hint="other")))
    assert [one.path for one in found] == ["exit", "hint"]


def test_an_entry_that_is_gone_or_new_is_reported(recording: Recording) -> None:
    """Entries of a list are matched by what they are, not by their place."""
    digest = recording["models"]["fixtures/llama-tied"]["answers"][INSPECT]
    stdout = copy.deepcopy(recording["answers"][digest]["stdout"])
    gone = stdout["consumers"].pop(0)
    (found,) = compare(recording, changed(recording, INSPECT, stdout=stdout))
    assert found.path == f"stdout.consumers[{gone['name']} {gone['version']}]" and found.after == ABSENT


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0), (None, "null"), ([], {}), ("a\n", "a")])
def test_values_of_other_types_differ(before: object, after: object, recording: Recording) -> None:
    """JSON tells apart what Python holds equal."""
    one, two = (changed(recording, RETIE, stdout={"nested": [{"value": value}]}) for value in (before, after))
    assert [found.path for found in compare(one, two)] == ["stdout.nested[].value"]


def test_a_model_in_one_recording_alone_is_reported(recording: Recording) -> None:
    fewer = {**recording, "models": dict(list(recording["models"].items())[1:])}
    assert [one.command for one in compare(recording, fewer)] == ["(models)"]
    assert [one.command for one in compare(fewer, recording)] == ["(models)"]


@pytest.mark.slow
def test_other_bytes_are_no_other_answer(recording: Recording) -> None:
    """Models that are not the same are reported as such, once."""
    other = copy.deepcopy(recording)
    other["models"]["fixtures/t5"]["content"] = "other"
    assert [(one.path, one.model) for one in compare(recording, other)] == [("content", "fixtures/t5")]


def test_known_differences_are_allowed_with_a_reason(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`compare` exits 1 until the file names the difference, and prints the reason."""
    before, after, known = (tmp_path / name for name in ("before.json", "after.json", "known.json"))
    before.write_text(json.dumps(recording))
    after.write_text(json.dumps(changed(recording, RETIE, exit=7)))
    assert main(["compare", str(before), str(after), "--allow", str(KNOWN)]) == 1
    known.write_text(
        json.dumps([{"command": "retie MODEL*", "path": "exit", "after": "7", "reason": "seven is right"}])
    )
    assert main(["compare", str(before), str(after), "--allow", str(known)]) == 0
    assert "allowed 1 × retie MODEL*: exit: seven is right" in capsys.readouterr().out
    known.write_text(json.dumps([{"command": "retie MODEL*", "path": "hint", "reason": "another path"}]))
    assert main(["compare", str(before), str(after), "--allow", str(known)]) == 1


def _changed(recording: Recording, change: Callable[[dict[str, Any]], object]) -> Recording:
    """Return the recording with each answer changed, under a new digest."""
    changed = copy.deepcopy(recording)
    for answer in changed["answers"].values():
        change(answer)
    changed["answers"] = {f"{digest}*": answer for digest, answer in changed["answers"].items()}
    for model in changed["models"].values():
        model["answers"] = {command: f"{digest}*" for command, digest in model["answers"].items()}
    return changed


def test_sentences_may_be_left_out(recording: Recording) -> None:
    """Another sentence is then no difference, and another exit code is one."""
    reworded = _changed(recording, lambda answer: "error" in answer and answer.update(error="another sentence"))
    assert list(compare(recording, reworded))
    assert not list(compare(without_sentences(recording), without_sentences(reworded)))
    failing = _changed(recording, lambda answer: answer.update(exit=answer["exit"] + 1))
    assert list(compare(without_sentences(recording), without_sentences(failing)))


def test_a_part_is_compared(recording: Recording, tmp_path: Path) -> None:
    """`--only` leaves the other models out of both recordings."""
    part = {name: one for name, one in recording["models"].items() if "cases/" in name}
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(recording))
    after.write_text(json.dumps({**recording, "models": part}))
    assert main(["compare", str(before), str(after)]) == 1
    assert main(["compare", str(before), str(after), "--only", "cases/"]) == 0


def test_a_directory_of_other_files_is_left_alone(tmp_path: Path) -> None:
    """Models are built in an empty directory only."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit, match="is not empty"):
        build(tmp_path, 1)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_group_has_its_commands() -> None:
    """Every model is inspected, checked, compared with its neighbour, and planned for."""
    assert {line.split()[0] for line in commands("fixtures")} >= {"inspect", "check", "diff", "retie", "analyze"}
    for group in ("fixtures", "grid", "classes"):
        lines = commands(group)
        assert len(set(lines)) == len(lines)
        assert INSPECT in lines and RETIE in lines
