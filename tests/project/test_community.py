"""What a contributor meets first: the guide, the templates, our own hooks, the citation."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import trove_classifiers
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from pre_commit.clientlib import load_config

from tests.project.test_workflows import TASKS
from tieconv.version import REPOSITORY, VERSION

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"
HOOKS = load_config(str(ROOT / ".pre-commit-config.yaml"))["repos"]


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


@pytest.mark.parametrize("hook", [hook for repo in HOOKS for hook in repo["hooks"]], ids=lambda hook: hook["id"])
def test_our_own_hooks_run_what_the_environment_has(hook: dict[str, str]) -> None:
    """pre-commit reads the file, and each entry is a program of a dependency group or of tieconv."""
    program = shlex.split(hook["entry"])[0]
    groups = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    package = {"lint-imports": "import-linter"}.get(program, program)
    assert program == "tieconv" or f'"{package}>=' in groups
    for word in shlex.split(hook["entry"])[1:]:
        assert not word.startswith("fixtures/") or (ROOT / word).is_dir(), word


def test_the_models_hook_passes() -> None:
    """The models that it checks are good."""
    from tieconv.cli import main

    (entry,) = [hook["entry"] for repo in HOOKS for hook in repo["hooks"] if hook["id"] == "models"]
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
    result = CliRunner().invoke(check_jsonschema, ["--builtin-schema", f"vendor.{schema}", str(path)])
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
