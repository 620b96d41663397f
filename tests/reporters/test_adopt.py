"""The action, the hook and the recipes of the guide to gating a release: valid by their schemas, and run."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.children import sound
from tests.lazy import check_jsonschema, clientlib
from tests.reporters import readers
from tests.reporters.reports import every_case
from tieconv.reporters.ci import formats as check

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "gate-a-release.md").read_text(encoding="utf-8")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GATE = yaml.safe_load((ROOT / ".github/workflows/gate.yml").read_text(encoding="utf-8"))
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"]}
_BLOCK = re.compile(r"```(?:yaml|groovy)\n(?:#|//) (\S+)\n(.*?)```", re.DOTALL)
BLOCKS = {match[1]: match[2] for match in _BLOCK.finditer(PAGE)}
RUN = re.findall(r"<!-- run -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
RUN += ["set -e\n" + "\n".join(yaml.safe_load(BLOCKS[".gitlab-ci.yml"])["check-models"]["script"])]
RUN += ["set -e\n" + match for match in re.findall(r"sh '''\n(.*?)'''", BLOCKS["Jenkinsfile"], re.DOTALL)]
REPORT = check.render("json", every_case())


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Stage:
    """A machine with a `tieconv` that notes its arguments and answers as it is told, and the runner's variables."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        self.answer(1, REPORT)
        # Like an installed Python: it finds tieconv, and nothing in the working directory.
        call = f'exec env PYTHONPATH={ROOT} {sys.executable} -P "$@"'
        script(self.bin / "python", f'[ "$1" != -I ] || shift\n{call}')
        environment = 'if [ "$2" = venv ]; then mkdir -p "$3/bin"; touch "$3/bin/activate"; exit; fi'
        script(self.bin / "python3", f'{environment}\n[ "$1" != -I ] || shift\n{call}')
        script(self.bin / "pip", f'printf "%s\\n" "$@" > {folder}/installed')
        script(self.bin / "hf", f'printf "%s\\n" "$@" > {folder}/uploaded')
        names = ("summary", "output")
        self.files = {name: folder / name for name in names}
        for path in self.files.values():
            path.touch()
        self.env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(folder),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(self.files["summary"]),
            "GITHUB_OUTPUT": str(self.files["output"]),
            "GITHUB_WORKSPACE": str(self.work),
            "WORKSPACE_TMP": str(folder),
            "TIECONV": "tieconv.whl",
            "LANG": "C.UTF-8",
        }

    def answer(self, code: int, report: str) -> None:
        (self.folder / "report.json").write_text(report)
        noting = f"printf '%s\\0' \"$@\" > {self.folder}/arguments"
        printed = f"env PYTHONPATH={ROOT} {sys.executable} -P -m tieconv.reporters.ci.formats"
        asked = """format=text
        while [ $# -gt 0 ]; do
          case $1 in
            --format) format=$2;;
            --report) $printed "${2%%=*}" < "$report" > "${2#*=}";;
          esac
          shift
        done
        if [ "$format" = json ]; then cat "$report"; else $printed "$format" < "$report"; fi"""
        head = f'{noting}\nreport={self.folder}/report.json printed="{printed}"'
        script(self.bin / "tieconv", f"{head}\n{asked}\nexit {code}")

    def run(self, text: str, **env: str) -> subprocess.CompletedProcess[str]:
        call = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", text]
        return subprocess.run(call, cwd=self.work, env=self.env | env, capture_output=True, text=True)

    def check(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        """The action's second step with the inputs that are given, the others as action.yml has them."""
        values = {name: str(given.get("default", "")) for name, given in ACTION["inputs"].items()} | inputs
        env = {"VENV": str(self.bin.parent)}
        for name, value in STEPS["check"]["env"].items():
            match = re.fullmatch(r"\$\{\{ inputs\.(\S+) \}\}", value)
            if match:
                env[name] = values[match[1]]
        return self.run(STEPS["check"]["run"], **env)

    @property
    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text().split("\0")[:-1]

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.files["output"].read_text().splitlines())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def valid(schema: str, path: Path) -> None:
    result = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", f"vendor.{schema}", str(path)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("schema", "path"),
    [("github-actions", "action.yml"), *(("github-workflows", f".github/workflows/{n}.yml") for n in ("ci", "gate"))],
)
def test_files_are_what_github_documents(schema: str, path: str) -> None:
    """The metadata of the action and the workflows hold by their schemas."""
    valid(schema, ROOT / path)


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        (".github/workflows/model.yml", "github-workflows"),
        (".github/workflows/release.yml", "github-workflows"),
        (".gitlab-ci.yml", "gitlab-ci"),
    ],
)
def test_recipes_are_what_their_services_document(name: str, schema: str, tmp_path: Path) -> None:
    """Each recipe can be copied as it stands."""
    (tmp_path / "recipe.yml").write_text(BLOCKS[name], encoding="utf-8")
    valid(schema, tmp_path / "recipe.yml")


def test_the_hook_and_its_recipe_are_what_pre_commit_reads(tmp_path: Path) -> None:
    """pre-commit itself loads the manifest, and the recipe names a hook of it."""
    (hook,) = clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    (tmp_path / "config.yaml").write_text(BLOCKS[".pre-commit-config.yaml"])
    (repository,) = clientlib.load_config(str(tmp_path / "config.yaml"))["repos"]
    assert [used["id"] for used in repository["hooks"]] == [hook["id"]] == ["tieconv-check"]
    assert hook["entry"].split()[0] == "tieconv" and hook["pass_filenames"] is False


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("model-00001-of-00002.safetensors", True),
        ("a/b/model.safetensors.index.json", True),
        ("pytorch_model.bin", True),
        ("onnx/model.onnx", True),
        ("config.json", True),
        ("x/adapter_config.json", True),
        ("modeling_mine.py", True),
        ("generation_config.json", True),
        ("tokenizer.json", True),
        ("added_tokens.json", True),
        ("vocab.txt", True),
        ("README.md", False),
        ("README.md", False),
        ("src/config.py", False),
    ],
)
def test_the_hook_runs_when_a_model_changes(name: str, runs: bool) -> None:
    """Weights, index, configs, tokenizer and model code."""
    (hook,) = clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert bool(re.search(hook["files"], name)) is runs


def test_actions_and_recipes_use_inputs_that_exist() -> None:
    """Every `with:` of the pages and of this repository's workflow names an input, every output read is one."""
    jobs = [*GATE["jobs"].values()]
    for name in (".github/workflows/model.yml", ".github/workflows/release.yml"):
        jobs += yaml.safe_load(BLOCKS[name])["jobs"].values()
    used = [step for job in jobs for step in job["steps"] if re.match(r"\./$|\./\.tieconv$", step.get("uses", ""))]
    assert len(used) == 4
    for step in used:
        assert set(step["with"]) <= set(ACTION["inputs"])
    read = set(re.findall(r"steps\.(?:good|bad|tieconv)\.outputs\.([\w-]+)", PAGE + json.dumps(GATE)))
    assert read and read <= set(ACTION["outputs"])
    named = re.findall(r"`([a-z-]+)`", re.search(r"Inputs:(.*?)\. No input", PAGE, re.DOTALL)[1])
    assert set(named) - {"github", "text"} == set(ACTION["inputs"]) | set(ACTION["outputs"])


def test_no_input_is_part_of_a_shell_script() -> None:
    """An expression in `run:` is text of the program: whoever names a branch or a model would write it."""
    for steps in (ACTION["runs"]["steps"], *(job["steps"] for job in GATE["jobs"].values())):
        for step in steps:
            assert "${{" not in step.get("run", "")
    for recipe in re.findall(r"run: (?:\|\n)?(.*?)(?=\n\S|\n {0,8}\S|```)", PAGE, re.DOTALL):
        assert "${{" not in recipe


def test_the_action_passes_inputs_as_they_are(stage: Stage) -> None:
    """Nothing is split, expanded or run: not of a model's name, not of an argument."""
    hostile = ["$(touch pwned)", "`touch pwned`", "a b", "*", "; touch pwned", '"', "--fix", "::error::x", "é"]
    done = stage.check(
        models="\n".join(hostile) + "\n\n", args="--depth\nfull\n--head=a b\n", **{"fail-on": "note; x", "select": "$X"}
    )
    assert done.returncode == 1, done.stderr
    head = ["check", "--format", "json", "--select=$X", "--fail-on=note; x", "--depth", "full", "--head=a b", "--"]
    assert stage.arguments == [*head, *hostile]
    assert list(stage.work.iterdir()) == []


def test_the_action_asks_for_nothing_that_was_not_given(stage: Stage) -> None:
    """Without inputs the command's own defaults and settings decide; the model is the repository's root."""
    stage.check()
    assert stage.arguments == ["check", "--format", "json", "--", "."]
    stage.check(ignore="STO001", config="ci/tieconv.toml", models="m\r\nn", **{"for": "transformers"})
    given = ["--ignore=STO001", "--for=transformers", "--config=ci/tieconv.toml"]
    assert stage.arguments == ["check", "--format", "json", *given, "--", "m", "n"]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_action_reports_everywhere_and_keeps_the_exit_code(stage: Stage, code: int) -> None:
    """One run of the gate gives annotations, the summary, SARIF, JUnit and JSON, whatever its answer."""
    stage.answer(code, REPORT)
    done = stage.check()
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == check.render("github", every_case()).splitlines()
    assert stage.files["summary"].read_text() == check.render("markdown", every_case()) + "\n"
    assert stage.outputs["exit-code"] == str(code)
    assert Path(stage.outputs["json"]).read_text() == REPORT
    readers.sarif().validate(json.loads(Path(stage.outputs["sarif"]).read_text()))
    readers.strict_junit(Path(stage.outputs["junit"]).read_text())


def test_the_action_shows_text_without_a_summary_on_request(stage: Stage) -> None:
    """`format: text` and `summary: false`."""
    done = stage.check(format="text", summary="false")
    assert done.stdout == check.render("text", every_case()) + "\n"
    assert stage.files["summary"].read_text() == ""


@pytest.mark.parametrize("code", [0, 2])
def test_the_action_never_passes_without_a_report(stage: Stage, code: int) -> None:
    """A gate that printed nothing did not say yes."""
    stage.answer(code, "")
    done = stage.check()
    assert done.returncode == 2 and "json" not in stage.outputs


def test_a_module_of_the_checked_repository_is_not_run() -> None:
    """Python does not look into the working directory, where a pull request can put a `json.py`."""
    lines = (STEPS["install"]["run"] + STEPS["check"]["run"]).splitlines()
    calls = [re.search(r"(?:python3|/bin/python\") (\S+)", line) for line in lines if "echo" not in line]
    assert [call[1] for call in calls if call] == ["-I"] * 4


def test_the_install_step_makes_an_environment_of_its_own(stage: Stage) -> None:
    """The action's checkout goes into a fresh environment, which the next step is told."""
    log = stage.folder / "calls"
    making = f'printf "%s\\n" "$*" >> {log}\nif [ "$3" = venv ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi'
    script(stage.bin / "python3", making)
    sound(stage.run(STEPS["install"]["run"]))
    calls = log.read_text().splitlines()
    assert calls[-2:] == [
        f"-I -m venv {stage.outputs['venv']}",
        f"-I -m pip install --quiet --disable-pip-version-check {ROOT}",
    ]


def test_the_install_step_says_that_python_is_too_old(stage: Stage) -> None:
    """One annotation names the step to add."""
    script(stage.bin / "python3", "exit 1")
    done = stage.run(STEPS["install"]["run"])
    command = readers.command(done.stdout)
    assert done.returncode == 2 and command is not None and "setup-python" in command.message


@pytest.mark.sampled(6)
@pytest.mark.parametrize("text", RUN)
@pytest.mark.parametrize("code", [0, 1, 2])
def test_recipes_fail_when_the_gate_does(stage: Stage, text: str, code: int) -> None:
    """Each shell recipe exits as the gate did, uploads only when it passed, and leaves the reports it promises."""
    stage.answer(code, REPORT)
    done = stage.run(text)
    assert done.returncode == code, done.stderr
    assert (stage.folder / "uploaded").exists() is ("hf upload" in text and code == 0)
    assert stage.arguments[0] == "check"
    reports = re.findall(r"(?:> |--report \w+=)(\S+\.\w+)", text)
    for name in reports:
        assert (stage.work / name).stat().st_size, name
    assert "--report" not in text or "models/" in done.stdout, "the log says which model failed"
    for name in stage.work.glob("*.xml"):
        readers.strict_junit(name.read_text())


def test_the_release_uploads_by_variables(stage: Stage) -> None:
    """The upload step takes names from the environment."""
    step = yaml.safe_load(BLOCKS[".github/workflows/release.yml"])["jobs"]["publish"]["steps"][-1]
    script(stage.bin / "pip", "exit 0")
    sound(stage.run(step["run"], REPO="org/name", GITHUB_REF_NAME="v1; touch pwned"))
    assert (stage.folder / "uploaded").read_text().splitlines()[-1] == "v1; touch pwned"
    assert list(stage.work.iterdir()) == []


@pytest.mark.parametrize(
    ("good", "bad", "outcome", "passes"),
    [
        ("0", "1", "failure", True),
        ("1", "1", "failure", False),
        ("0", "0", "success", False),
        ("0", "2", "failure", False),
    ],
)
def test_this_repository_expects_the_bad_model_to_fail(
    stage: Stage, good: str, bad: str, outcome: str, passes: bool
) -> None:
    """The workflow passes only where the good models passed and the bad one failed with 1, not with 2."""
    step = next(step for step in GATE["jobs"]["fixtures"]["steps"] if "run" in step)
    done = stage.run(step["run"], GOOD=good, BAD=bad, BAD_OUTCOME=outcome)
    assert (done.returncode == 0) is passes


def _gated(name: str) -> list[str]:
    step = next(step for step in GATE["jobs"]["fixtures"]["steps"] if step.get("id") == name)
    return step["with"]["models"].split()


def test_the_workflow_names_models_that_exist() -> None:
    """The fixtures that the workflow gates are in the repository."""
    assert all((ROOT / name / "config.json").is_file() for step in ("good", "bad") for name in _gated(step))


@pytest.mark.parametrize(("step", "level", "code"), [("good", "warning", 0), ("bad", "error", 1), ("none", "error", 2)])
def test_the_action_end_to_end(stage: Stage, step: str, level: str, code: int) -> None:
    """The real command behind the action: what the workflow of this repository expects of its own models."""
    names = [str(ROOT / name) for name in _gated(step)] if step != "none" else [str(ROOT / "no-such-model")]
    script(stage.bin / "tieconv", f'PYTHONPATH={ROOT} exec {sys.executable} -P -m tieconv "$@"')
    done = stage.check(models="\n".join(names), **{"fail-on": level})
    assert done.returncode == code, done.stdout + done.stderr
    report = json.loads(Path(stage.outputs["json"]).read_text())
    assert report["failed"] == min(code, 1) and len(report["models"]) == len(names)
    readers.sarif().validate(json.loads(Path(stage.outputs["sarif"]).read_text()))
    assert readers.page(stage.files["summary"].read_text()).strays == []
