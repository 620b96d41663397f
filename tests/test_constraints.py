"""What the tests and lint install is pinned in one file, for every Python that CI runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
WORKFLOWS = ROOT / ".github" / "workflows"
PYTHONS = ["3.11", "3.12", "3.13"]


def constraints() -> list[Requirement]:
    """The lines of the file; anything but `NAME==VERSION [; MARKER]` is no requirement and fails here."""
    lines = CONSTRAINTS.read_text(encoding="ascii").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def pinned(python: str) -> dict[str, str]:
    """Name to version, as pip on Linux with this Python reads them."""
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": "x86_64",
        "sys_platform": "linux",
    }
    held = [one for one in constraints() if one.marker is None or one.marker.evaluate(environment)]
    versions = {canonicalize_name(one.name): str(one.specifier) for one in held}
    assert len(versions) == len(held), "a package with two versions"
    return versions


def asked() -> list[Requirement]:
    """What the groups, the extras of `all`, the base and the build of tieconv require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    lists = [
        *project["dependency-groups"].values(),
        project["project"]["dependencies"],
        project["build-system"]["requires"],
        *(extras[name] for name in ("torch", "onnx", "hub", "objects")),
    ]
    return [Requirement(line) for lines in lists for line in lines if isinstance(line, str)]


def test_every_line_is_an_exact_release() -> None:
    """One release each: no range, local version, URL, option or library of CUDA."""
    for one in constraints():
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(one.specifier)), one
        assert one.url is None and not one.extras
        assert not one.name.startswith(("nvidia", "cuda", "triton"))


@pytest.mark.parametrize("python", PYTHONS)
def test_all_that_is_asked_for_is_pinned(python: str) -> None:
    """A requirement of pyproject.toml without a constraint, or that its constraint contradicts, needs `.ci/lock`."""
    versions = pinned(python)
    assert versions["torch"] == "==2.13.0"
    for one in asked():
        version = versions.get(canonicalize_name(one.name))
        assert version is not None, f"{one} has no constraint: run .ci/lock {one.name}"
        assert one.specifier.contains(version.removeprefix("=="), prereleases=True), f"{one}: run .ci/lock {one.name}"


def test_workflows_install_with_the_constraints() -> None:
    """No workflow installs a package without them, but the canary, which is there to try what is new."""
    for path in WORKFLOWS.glob("*.yml"):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        for job in jobs.values():
            lines = "\n".join(step.get("run", "") for step in job.get("steps", [])).replace("\\\n", " ").splitlines()
            for line in lines:
                if "pip install" in line:
                    assert " -c " in line and path.name != "canary.yml", line
            if any(step.get("uses") == "./" for step in job.get("steps", [])):
                assert job["env"]["PIP_CONSTRAINT"] == ".ci/constraints.txt"
    matrix = yaml.safe_load((WORKFLOWS / "ci.yml").read_text(encoding="utf-8"))["jobs"]["run"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS


def test_the_canary_tries_what_the_tests_require() -> None:
    """Each package that the test group asks for by name is tried alone or with its kin, or with `all`."""
    canary = yaml.safe_load((WORKFLOWS / "canary.yml").read_text(encoding="utf-8"))
    groups = canary["jobs"]["newest"]["strategy"]["matrix"]["package"]
    assert "schedule" in canary[True]  # YAML reads `on` as true
    assert groups[0] == "all"
    names = {canonicalize_name(one.name) for one in asked()}
    assert {name for group in groups[1:] for name in group.split()} <= names


@pytest.mark.parametrize("step", re.findall(r"^.*pip install .*$", (ROOT / ".ci" / "run").read_text(), re.M))
def test_the_run_installs_with_the_constraints(step: str) -> None:
    """Every installation of `.ci/run` is constrained, but for the newest and the lowest releases."""
    assert re.search(r"\$\{pinned\[(@|1)\]|\$newest|--resolution lowest-direct", step)
