"""`tieconv check --fix`: safe remedies only, one at a time, through the same plans and proofs as the verbs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import tieconv as api
from tests.checks.fixtures import FIXTURES
from tests.cli.run import ok, refused, run
from tests.cli.stored import config, snapshot
from tieconv.api import fixes
from tieconv.api.fixes import plan_action
from tieconv.checkpoint.finding import Action, Finding, Level, Remedy
from tieconv.checkpoint.results.checked import CheckedFinding, CheckedModel, Fix
from tieconv.errors import WriteFailedError
from tieconv.gate.fixes import Fixer
from tieconv.planned import PlannedWrite

MODELS = Path(__file__).parents[2] / "fixtures" / "models"

ROOT = Path(__file__).parents[2]
Copy = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def faulty(model: Copy) -> Path:
    """Two safe remedies: a redundant head to drop, and an index whose total is wrong."""
    folder = model("llama-tied-sharded")
    single = model("llama-duplicated")
    shutil.rmtree(folder)
    ok("convert --to safetensors --max-shard-size 20KB", single, "-o", folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["metadata"]["total_size"] += 1
    path.write_text(json.dumps(index))
    shutil.rmtree(single)
    return folder


def test_no_command_removes_the_only_sign_of_a_lost_tensor(faulty: Path) -> None:
    """`reindex` writes the whole index. With an entry of a tensor that no shard stores, no finding offers it."""
    path = faulty / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.absent.weight"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    remedies = {finding.rule: finding.remedy for finding in api.inspect(faulty).findings}
    assert {"IDX001", "IDX004"} <= remedies.keys()
    assert (remedies["IDX001"], remedies["IDX004"]) == (None, None)


def codes(folder: Path) -> set[str]:
    return {finding.rule for finding in api.inspect(folder).findings}


def test_without_a_target_the_plans_are_printed(faulty: Path) -> None:
    """Nothing is written, and the exit code is that of the findings."""
    before = snapshot(faulty.parent)
    result = run("check --fix", faulty)
    assert result.exit_code == 1
    assert "retie " in result.stdout and "reindex " in result.stdout and "rewrite" in result.stdout
    assert "nothing was written: give -o OUT or --in-place" in result.stderr
    document = run("check --fix --format json", faulty)
    assert json.loads(document.stdout)["models"] and "rewrite" in document.stderr
    assert snapshot(faulty.parent) == before


def test_every_safe_remedy_is_applied(faulty: Path, tmp_path: Path) -> None:
    """OUT has no such finding, computes the same, and nothing of the steps is left beside it."""
    assert codes(faulty) == {"TIE002", "IDX004"}
    before = snapshot(faulty)
    out = tmp_path / "out"
    result = ok("check --fix", faulty, "-o", out)
    assert "fixed: TIE002" in result.stderr and f"wrote {out}: verified and checked again" in result.stderr
    assert codes(out) == set() and ok("diff", faulty, out)
    assert snapshot(faulty) == before
    assert sorted(os.listdir(tmp_path)) == sorted([faulty.name, "out"])


def test_in_place(faulty: Path, tmp_path: Path) -> None:
    """The model itself, a whole write a remedy."""
    original = Path(shutil.copytree(faulty, tmp_path / "original"))
    result = ok("check --fix --in-place", faulty)
    assert codes(faulty) == set() and ok("diff", original, faulty)
    assert "fixed: " in result.stderr and f"wrote {faulty}: verified and checked again" in result.stderr
    assert sorted(os.listdir(tmp_path)) == sorted([faulty.name, "original"])


@pytest.mark.parametrize(
    ("name", "usual"), [("model (1).safetensors", "model.safetensors"), ("weights.bin", "pytorch_model.bin")]
)
def test_a_name_that_no_loader_looks_for(model: Copy, tmp_path: Path, name: str, usual: str) -> None:
    """The model comes under the usual name, in the format that it has."""
    folder = model("llama-duplicated")
    ok("convert --to", "torch" if usual.endswith(".bin") else "safetensors", folder, "-o", tmp_path / "model")
    (tmp_path / "model" / usual).rename(tmp_path / "model" / name)
    ok("check --fix --in-place", tmp_path / "model")
    assert codes(tmp_path / "model") == set() and (tmp_path / "model" / usual).exists()
    assert not (tmp_path / "model" / name).exists()


def test_unsafe_remedies_are_left(model: Copy, tmp_path: Path) -> None:
    """What decides the function is for a person: told, not done, and the exit code says so."""
    folder = model("llama-headless-config")
    before = snapshot(folder)
    result = run("check --fix", folder, "-o", tmp_path / "out")
    assert result.exit_code == 1 and not (tmp_path / "out").exists()
    assert "not fixed: TIE003: tieconv retie" in result.stderr and "review first" in result.stderr
    assert "not written: its findings have no safe remedy" in result.stderr
    previewed = run("check --fix", folder).stderr
    assert "not fixed: TIE003: tieconv retie" in previewed and "review first" in previewed
    assert "give -o OUT" not in previewed, "there is nothing that it would write"
    assert snapshot(folder) == before


@pytest.mark.parametrize("option", ["--ignore TIE002", "--fail-on error", "--select STO"])
def test_what_does_not_count_is_not_fixed(model: Copy, tmp_path: Path, option: str) -> None:
    """A waived finding, one below the level, one that is not selected."""
    ok(f"check --fix {option}", model("llama-duplicated"), "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_several_models_go_below_out(model: Copy, tmp_path: Path) -> None:
    """OUT/NAME each, those alone that had something to fix."""
    paths = [model("llama-duplicated"), model("llama-tied"), model("llama-diverged")]
    out = tmp_path / "fixed"
    ok("check --fix", *paths, "-o", out)
    assert sorted(os.listdir(out)) == ["llama-diverged", "llama-duplicated"]
    assert config(out / "llama-diverged")["tie_word_embeddings"] is False
    assert run("check", out / "llama-diverged", out / "llama-duplicated").exit_code == 0
    ok("check --fix", *paths[1:], "-o", tmp_path / "two")
    assert os.listdir(tmp_path / "two") == ["llama-diverged"]


def test_two_models_of_one_name_are_refused(model: Copy, models: Path, tmp_path: Path) -> None:
    """Before anything is written."""
    error = refused("check --fix", model("t5"), models / "t5", "-o", tmp_path / "out")
    assert "would both be written to" in error and not (tmp_path / "out").exists()


def test_the_refusals_of_a_write_hold(model: Copy, tmp_path: Path) -> None:
    """An OUT that exists or lies in the model is that model's failure; nothing changes."""
    folder = model("llama-duplicated")
    (tmp_path / "taken").mkdir()
    before = snapshot(folder)
    for out in (tmp_path / "taken", folder / "inside", folder):
        result = run("check --fix --format json", folder, "-o", out)
        assert result.exit_code == 2
        assert json.loads(result.stdout)["models"][0]["failure"]["hint"]
    assert snapshot(folder) == before and list((tmp_path / "taken").iterdir()) == []


def test_a_step_that_fails_leaves_nothing(faulty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second write fails: OUT is absent, what the first wrote is gone, the source is as it was."""
    real, calls = fixes.plan_action, []

    def once(action: Action) -> object:
        calls.append(action)
        if len(calls) == 2:
            raise WriteFailedError("the disk is full", "make room")
        return real(action)

    monkeypatch.setattr(fixes, "plan_action", once)
    before = snapshot(faulty)
    result = run("check --fix", faulty, "-o", tmp_path / "out")
    assert result.exit_code == 2 and "the disk is full" in result.stdout
    assert "could not be fixed" in result.stdout and "fixed:" not in result.stderr
    assert os.listdir(tmp_path) == [faulty.name] and snapshot(faulty) == before


def test_a_step_in_place_that_fails_is_not_called_fixed(faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place each step stands by itself: those before the one that failed are told, that one is not."""
    real, calls = PlannedWrite.execute, []

    def twice(planned: PlannedWrite, *arguments: object, **options: object) -> object:
        calls.append(planned)
        if len(calls) == 2:
            raise WriteFailedError("the disk is full", "make room")
        return real(planned, *arguments, **options)

    monkeypatch.setattr(PlannedWrite, "execute", twice)
    result = run("check --fix --in-place", faulty)
    assert result.exit_code == 2 and "the disk is full" in result.stdout
    assert result.stderr.count("fixed:") == 1


def test_a_kill_between_two_steps_is_cleared_by_the_next_run(faulty: Path, tmp_path: Path) -> None:
    """OUT is absent, the source as it was, and what was left is swept when the command is run again."""
    code = (
        "import os\nfrom tieconv.api import fixes\nfrom tieconv.cli import main\n"
        "real, calls = fixes.plan_action, []\n"
        "def once(action):\n"
        "    calls.append(action)\n"
        "    return real(action) if len(calls) < 2 else os._exit(137)\n"
        "fixes.plan_action = once\n"
        f"main(['check', '--no-config', '--fix', {str(faulty)!r}, '-o', {str(tmp_path / 'out')!r}])"
    )
    before = snapshot(faulty)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert killed.returncode == 137
    assert sorted(os.listdir(tmp_path)) == [".out.tieconv-staging", faulty.name]
    assert snapshot(faulty) == before
    ok("check --fix", faulty, "-o", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == sorted([faulty.name, "out"])


def test_a_lone_file_is_fixed_in_place_alone(model: Copy) -> None:
    """A weight file with its config beside it: the remedy names the directory, and works."""
    folder = model("llama-duplicated")
    ok("check --fix --in-place", folder / "model.safetensors")
    assert codes(folder) == set()


# --- remedies that work against each other ---------------------------------------------------------------


class Written:
    """A plan whose write only counts."""

    def __init__(self, log: list[str], verb: str) -> None:
        self.log, self.verb = log, verb

    def outcome(self) -> SimpleNamespace:
        return SimpleNamespace(plan=SimpleNamespace(notes=()))

    def execute(self, **_: object) -> SimpleNamespace:
        self.log.append(self.verb)
        return self.outcome()


def fixer(sequence: list[str], log: list[str]) -> CheckedModel:
    """A model that after each write asks for the next verb of the sequence, and in the end for the last one."""

    def look(path: str) -> CheckedModel:
        verb = sequence[min(len(log), len(sequence) - 1)]
        action = Action(verb, path)
        finding = Finding("TIE001", Level.ERROR, "m", (), Remedy(action.command, True, action))
        return CheckedModel(path, (CheckedFinding(finding, "f"),))

    plan = lambda action: Written(log, action.verb)  # noqa: E731
    return Fixer(look, lambda entry: True, plan, None).run(look("model"))  # type: ignore[arg-type]


def test_a_remedy_is_not_applied_twice() -> None:
    """The finding that it leaves is told, once."""
    log: list[str] = []
    model = fixer(["retie"], log)
    assert log == ["retie"]
    assert [fix.refusal for fix in model.fixes] == ["", "the remedy was applied, but the finding remains"]


@pytest.mark.parametrize(
    ("first", "second"), [("retie", "untie"), ("untie", "set-tie true"), ("set-tie false", "retie")]
)
def test_a_remedy_does_not_undo_another(first: str, second: str) -> None:
    """Tied after untied, or the other way round, is for a person to decide."""
    log: list[str] = []
    model = fixer([first, second], log)
    assert log == [first]
    assert model.fixes[-1] == Fix(
        f"tieconv {second} model -o OUT", ("TIE001",), f"the remedy would undo {first}, which is already applied"
    )


def test_an_endless_chain_ends() -> None:
    """At most eight remedies, whatever is found after each."""
    log: list[str] = []
    fixer([f"bias {number}" for number in range(50)], log)
    assert len(log) == 8


def test_a_remedy_for_another_model_is_left() -> None:
    """An adapter's finding can name a command for its base, which --fix must not write."""
    action = Action("untie", "/models/base")
    finding = Finding("PEF001", Level.ERROR, "m", (), Remedy(action.command, True, action))
    model = CheckedModel("/models/adapter", (CheckedFinding(finding, "f"),))
    log: list[str] = []
    after = Fixer(lambda path: model, lambda entry: True, lambda a: Written(log, a.verb), None).run(model)  # type: ignore[arg-type,return-value]
    assert log == [] and after.fixes[0].refusal == "the remedy is about another model"


def test_what_is_left_is_not_announced(tmp_path: Path) -> None:
    """The summary counts the findings that `--fix` would end, and no command for a base model is among them."""
    result = run("check", FIXTURES["PEF001 bad"](tmp_path / "adapter"))
    assert result.exit_code == 1 and "PEF001" in result.stdout
    below = "1 model below was not checked (--recursive checks them)."
    assert result.stderr.rstrip().endswith(f"The check failed: 1 finding has level warning or higher. {below}")


def test_a_bare_flag_is_applied_as_it_is_printed(tmp_path: Path) -> None:
    """An option without a value reads as one on the command line, and means the same in the plan."""
    source = str(MODELS / "llama-tied")
    action = Action("untie", source, (("keep_flag", True),))
    assert action.command == f"tieconv untie {source} --keep-flag -o OUT"
    plan_action(action).execute(tmp_path / "out")
    written = api.inspect(tmp_path / "out")
    assert written.config.effective is True
    assert written.head.output_head is not None and written.head.output_head.stored
