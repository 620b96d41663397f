"""The workflows, and what a contributor meets first: valid, pinned, and saying what is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import trove_classifiers
import yaml
from click.testing import CliRunner

from tests.fuzz.targets import TARGETS
from tests.lazy import check_jsonschema, clientlib
from tests.mutants.rooms import TESTS
from tests.oracles.environments import ENVIRONMENTS
from tieconv.version import REPOSITORY, VERSION

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TASKS = set(re.findall(r"^#   \.ci/run (\w+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)) | {"all"}


def loaded(path: Path) -> dict[Any, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in loaded(path)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_is_what_github_documents(path: Path) -> None:
    """By the schema of workflows."""
    result = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", "vendor.github-workflows", str(path)])
    assert result.exit_code == 0, result.output


def test_dependabot_is_what_github_documents() -> None:
    """By its schema; it renews the hashes."""
    path = ROOT / ".github" / "dependabot.yml"
    result = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", "vendor.dependabot", str(path)])
    assert result.exit_code == 0, result.output
    assert [entry["package-ecosystem"] for entry in loaded(path)["updates"]] == ["github-actions"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_hash(path: Path) -> None:
    """A full hash, the version as a comment for people and dependabot; one hash for an action everywhere."""
    uses = re.findall(r"uses: (\S+)(?: # (\S+))?$", path.read_text(encoding="utf-8"), re.M)
    for action, version in uses:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r"v\d+\.\d+\.\d+", version), action


def test_one_action_has_one_hash() -> None:
    """Two workflows never use two versions of an action."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    pinned = set(re.findall(r"uses: ([\w/.-]+)@([0-9a-f]{40}) # (\S+)", text))
    assert len(pinned) == len({name for name, _, _ in pinned}) >= 5


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_are_given_by_job(path: Path) -> None:
    """None for the workflow, each job's own, a limit of minutes; the checkout leaves no credentials behind."""
    workflow = loaded(path)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert "permissions" in job
        assert "uses" in job or job["timeout-minutes"] <= 350
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "an expression in `run:` is text of the program"


def test_each_task_of_the_run_exists() -> None:
    """Every `.ci/run TASK` of a workflow is one that .ci/run documents and knows."""
    for path in WORKFLOWS:
        for name, job in loaded(path)["jobs"].items():
            matrix = job.get("strategy", {}).get("matrix", {})
            tasks = [
                *matrix.get("task", []),
                *(entry["task"] for entry in matrix.get("include", []) if "task" in entry),
            ]
            text = "\n".join(step.get("run", "") for step in job.get("steps", []))
            tasks += re.findall(r"\.ci/run (\w+)", text)
            assert set(tasks) <= TASKS, (path.name, name)


def test_the_run_calls_what_exists() -> None:
    """Each module, script and test folder that a task names is in the repository."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m (tests[\w.]+)", text))
    scripts = set(re.findall(r"python ([\w/]+\.py)", text))
    (folders,) = re.findall(r"set -- tests/\{([\w,]+)\}", text)
    assert (len(modules), len(scripts)) == (9, 7)
    for path in (ROOT / module.replace(".", "/") for module in modules):
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), path
    assert all((ROOT / script).is_file() for script in scripts)
    assert all((ROOT / "tests" / folder).is_dir() for folder in folders.split(","))


def test_the_run_refuses_an_unknown_task() -> None:
    """It does not run everything, or nothing, for a mistyped word."""
    done = subprocess.run(["bash", ".ci/run", "tset"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown task tset" in done.stderr


def test_what_takes_long_is_scheduled() -> None:
    """slow, matrix, every real loader, every fuzz target, every room's mutants, the canary with its tables."""
    jobs = {path.stem: loaded(path) for path in WORKFLOWS}
    for name in ("slow", "fuzz", "mutants", "canary"):
        assert "schedule" in jobs[name][True]
    assert jobs["slow"]["jobs"]["tests"]["strategy"]["matrix"]["task"] == [
        "slow", "matrix", "coverage", "budget", "files", "faults", "pyodide",
    ]  # fmt: skip
    assert jobs["slow"]["jobs"]["loaders"]["strategy"]["matrix"]["loader"] == sorted(ENVIRONMENTS)
    assert set(jobs["fuzz"]["jobs"]["target"]["strategy"]["matrix"]["target"]) == set(TARGETS)
    parts = jobs["mutants"]["jobs"]["part"]["strategy"]["matrix"]["include"]
    assert {room for part in parts for room in part["rooms"].split()} == set(TESTS)
    newest = {step.get("env", {}).get("TIECONV_NEWEST") for step in jobs["canary"]["jobs"]["tables"]["steps"]}
    assert "transformers safetensors onnxruntime" in newest


def test_slow_tests_run_where_they_matter() -> None:
    """A pull request that changes what slow tests cover runs them: each folder that has any is in the workflow."""
    workflow = loaded(ROOT / ".github/workflows/slow-on-paths.yml")
    lists = workflow["jobs"]["folder"]["strategy"]["matrix"]["folders"]
    named = {folder for text in lists for folder in text.split()}
    slow = {
        "/".join(path.relative_to(ROOT).parts[:2])
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"pytest\.mark\.(slow|sampled)\b", path.read_text(encoding="utf-8"))
    }
    assert slow - {"tests/gpu"} <= named
    assert all((ROOT / folder).is_dir() for folder in named)
    assert all((ROOT / path.removesuffix("/**")).is_dir() for path in workflow[True]["pull_request"]["paths"])


def test_macos_is_tried() -> None:
    """The README promises it."""
    matrix = loaded(ROOT / ".github/workflows/ci.yml")["jobs"]["run"]["strategy"]["matrix"]
    assert "macos-latest" in {entry["os"] for entry in matrix["include"]} and "ubuntu-latest" in matrix["os"]


GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"
HOOKS = [hook for repo in loaded(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]


def _commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


def test_the_guide_s_commands_name_what_exists() -> None:
    """Each task of .ci/run, each test file, each module and each script."""
    text = "\n".join([*_commands(), *re.findall(r"`([^`\n]+)`", GUIDE)])
    assert set(re.findall(r"\.ci/run (\w+)", text)) <= TASKS
    named = re.findall(r"(?<![\w./])((?:tests|tieconv|docs|fixtures|\.ci)/[\w./-]+)", text)
    assert len(named) >= 8
    assert all((ROOT / name).exists() for name in named), named
    for module in re.findall(r"python -m ([\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_guide_covers_a_contributor_s_questions() -> None:
    """Setting up, one test, a rule, a page, a release."""
    headings = re.findall(r"^## (.+)$", GUIDE, re.M)
    assert headings[:4] == ["Set up", "Run tests", "Add a rule", "Change a page of the docs"] and "Release" in headings
    assert re.search(r"^pytest tests/\S+\.py ", GUIDE, re.M)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_our_own_hooks_run_what_the_environment_has(hook: dict[str, str]) -> None:
    """pre-commit reads the file, and each entry is a program of a dependency group or of tieconv."""
    read = clientlib.load_config(str(ROOT / ".pre-commit-config.yaml"))["repos"]
    assert hook["entry"] in [known["entry"] for repo in read for known in repo["hooks"]]
    program = shlex.split(hook["entry"])[0]
    groups = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    package = {"lint-imports": "import-linter"}.get(program, program)
    assert program == "tieconv" or f'"{package}>=' in groups
    for word in shlex.split(hook["entry"])[1:]:
        assert not word.startswith("fixtures/") or (ROOT / word).is_dir(), word


def test_the_models_hook_passes() -> None:
    """The models that it checks are good."""
    from tieconv.cli import main

    (entry,) = [hook["entry"] for hook in HOOKS if hook["id"] == "models"]
    words = [str(ROOT / word) if word.startswith("fixtures/") else word for word in shlex.split(entry)[1:]]
    assert CliRunner().invoke(main, words).exit_code == 0


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        *(("github-issue-forms", path) for path in TEMPLATES.glob("*.yml") if path.name != "config.yml"),
        ("github-issue-config", TEMPLATES / "config.yml"),
        ("citation-file-format", ROOT / "CITATION.cff"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_files_are_what_github_documents(schema: str, path: Path) -> None:
    """The issue forms, their page of choices and the citation hold by their schemas."""
    result = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", f"vendor.{schema}", str(path)])
    assert result.exit_code == 0, result.output


def test_security_faults_are_sent_to_a_private_page() -> None:
    """The link beside the issue forms is this repository's."""
    config = yaml.safe_load((TEMPLATES / "config.yml").read_text(encoding="utf-8"))
    assert config["contact_links"][0]["url"] == f"{REPOSITORY}/security/advisories/new"


def test_the_citation_is_of_this_version() -> None:
    """What GitHub shows under "Cite this repository"."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    known = None if "/OWNER/" in REPOSITORY else REPOSITORY
    assert str(citation["version"]) == VERSION and citation.get("repository-code") == known


def test_the_classifiers_say_what_ci_runs() -> None:
    """Each Python of the matrix, and no other; the name of each classifier is one that the index knows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    pythons = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.M)
    assert pythons == ci["jobs"]["run"]["strategy"]["matrix"]["python"]
    assert set(project["classifiers"]) <= trove_classifiers.classifiers
    assert project["classifiers"] == sorted(project["classifiers"]) and project["keywords"] == sorted(
        project["keywords"]
    )
