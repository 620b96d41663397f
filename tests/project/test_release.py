"""A tag is released only where version, address, settings and changelog agree."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "release.py"
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
READY = {"VERSION": "1.2.3", "REPOSITORY": "https://github.com/someone/tieconv", "PUBLISHED": True}
CHANGELOG = """\
# Changelog

## 1.3.0 (unreleased)

- later

## 1.2.3 (2026-12-01)

### Added
- one thing

## 1.2.2 (2026-11-01)

- before
"""


@pytest.fixture(scope="module")
def problems() -> Callable[..., list[str]]:
    problems_function = runpy.run_path(str(SCRIPT))["problems"]
    assert callable(problems_function)
    return problems_function


def test_a_release_that_is_ready(problems: Callable[..., list[str]]) -> None:
    """Nothing stands against it, and its notes are its section alone."""
    assert problems("v1.2.3", READY, CHANGELOG) == []
    assert runpy.run_path(str(SCRIPT))["notes"]("1.2.3", CHANGELOG) == "### Added\n- one thing"


@pytest.mark.parametrize(
    ("tag", "changed", "changelog", "message"),
    [
        ("v1.2.4", {}, CHANGELOG, "The tag is v1.2.4"),
        ("1.2.3", {}, CHANGELOG, "The tag is 1.2.3"),
        ("v1.2.3", {"REPOSITORY": "https://github.com/OWNER/tieconv"}, CHANGELOG, "has no account yet"),
        ("v1.2.3", {"PUBLISHED": False}, CHANGELOG, "PUBLISHED in tieconv/version.py is False"),
        ("v1.3.0", {"VERSION": "1.3.0"}, CHANGELOG, 'no heading "## 1.3.0 (YYYY-MM-DD)"'),
        ("v1.2.30", {"VERSION": "1.2.30"}, CHANGELOG, 'no heading "## 1.2.30'),
        ("v1.2.3", {}, CHANGELOG.replace("- one thing", ""), "lists no change for 1.2.3"),
    ],
)
def test_each_thing_that_is_missing_is_said(
    problems: Callable[..., list[str]], tag: str, changed: dict[str, object], changelog: str, message: str
) -> None:
    """One sentence, and nothing else is complained about."""
    (sentence,) = problems(tag, READY | changed, changelog)
    assert message in sentence


def test_the_script_reads_this_repository() -> None:
    """A tag of another version fails with a sentence and prints no notes."""
    done = subprocess.run([sys.executable, str(SCRIPT), "v0.0.0"], capture_output=True, text=True, cwd="/")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("The tag is v0.0.0, but tieconv/version.py has VERSION = ")


def test_nothing_is_published_before_tests_check_and_attestation() -> None:
    """publish waits for attest, which waits for tests and build; the build checks the tag before it builds."""
    jobs = WORKFLOW["jobs"]
    assert jobs["publish"]["needs"] == "attest" and set(jobs["attest"]["needs"]) == {"tests", "build"}
    assert jobs["release"]["needs"] == "publish"
    calls = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert ".ci/release.py" in calls[0] and calls[1] == "bash .ci/run wheel"
    assert "dist/*.whl dist/*.tar.gz" in jobs["publish"]["steps"][-1]["run"]  # and not tieconv.pyz
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true


def test_only_the_index_and_the_signer_get_an_identity() -> None:
    """No secret anywhere; `id-token` where something is signed or published, `contents: write` for the page alone."""
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    rights = {name: job["permissions"] for name, job in WORKFLOW["jobs"].items()}
    assert {name for name, granted in rights.items() if granted.get("id-token")} == {"attest", "publish"}
    assert {name for name, granted in rights.items() if granted.get("contents") == "write"} == {"release"}
    assert WORKFLOW["permissions"] == {}
