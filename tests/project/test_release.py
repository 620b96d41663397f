"""A tag is released only where version, address and changelog agree, and pages say that version and address."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from pages import addresses  # noqa: E402

from tieconv import install, version  # noqa: E402

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


PAGE = """\
See https://github.com/OWNER/tieconv/issues and https://owner.github.io/tieconv/rules.
`pip install '.[onnx]'`, `pip install --upgrade 'tieconv[gpu]'`, 'tieconv[hub] @ git+https://x/y',
`pip install -e '.[gpu,torch]'` in a clone.
      - uses: OWNER/tieconv@v0.0.1
  - repo: https://github.com/OWNER/tieconv
    rev: v0.0.1
<!-- install -->
```sh
old
```
<!-- install: once -->
```sh
old
```
"""


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An account is chosen and version 2.3.4 is next."""
    for module in (version, install):
        monkeypatch.setattr(module, "REPOSITORY", "https://github.com/Some-One/tieconv")
    monkeypatch.setattr(version, "VERSION", "2.3.4")
    return monkeypatch


def test_one_setting_changes_every_address(chosen: pytest.MonkeyPatch) -> None:
    """Links, the site, `uses:` and `rev:` follow the repository and the version."""
    text = addresses.fill(PAGE)
    assert "OWNER" not in text and "owner.github.io" not in text and "0.0.1" not in text
    assert "https://some-one.github.io/tieconv/rules" in text
    assert "uses: Some-One/tieconv@v2.3.4" in text
    assert "repo: https://github.com/Some-One/tieconv\n    rev: v2.3.4" in text
    assert addresses.fill(text) == text


def test_no_page_shows_the_placeholder() -> None:
    """Until there is an address, CI uses a clone; afterwards the same lines name the repository."""
    text = addresses.fill(PAGE.partition("\n")[2])
    assert "uses: ./.tieconv\n" in text and "repo: ../tieconv\n    rev: COMMIT\n" in text and "OWNER" not in text
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert "OWNER" not in page.read_text(encoding="utf-8"), page


def test_no_release_no_install_by_name(chosen: pytest.MonkeyPatch) -> None:
    """Before a release the lines name the repository; a clone's own line stays."""
    text = addresses.fill(PAGE)
    address = "git+https://github.com/Some-One/tieconv"
    for extra in ("onnx", "gpu", "hub"):
        assert f"'tieconv[{extra}] @ {address}'" in text
    assert "pip install -e '.[gpu,torch]'" in text
    assert f"pip install 'tieconv @ {address}'" in text
    assert f"uvx --from {address} tieconv inspect" in text


def test_a_release_gives_short_lines(chosen: pytest.MonkeyPatch) -> None:
    """`PUBLISHED = True` is all that it takes."""
    for module in (version, install):
        chosen.setattr(module, "PUBLISHED", True)
    text = addresses.fill(PAGE)
    assert "pip install 'tieconv[onnx]'" in text and "pip install --upgrade 'tieconv[gpu]'" in text
    assert "pip install tieconv\n" in text and "uvx tieconv inspect" in text
    assert "git+" not in text


def test_without_an_address_the_lines_are_for_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """OWNER is nobody: no line tells a reader to install from it."""
    for module in (version, install):
        monkeypatch.setattr(module, "REPOSITORY", "https://github.com/OWNER/tieconv")
    text = addresses.fill(PAGE)
    assert "git+" not in text and "pip install '.[onnx]'" in text
    first, *rest = addresses.install_lines("first").splitlines()
    assert first.endswith("tieconv inspect fixtures/models/llama-duplicated")
    assert rest == [".venv/bin/tieconv inspect YOUR_MODEL"]
    assert max(map(len, addresses.install_lines().splitlines())) < 80
    settings = 'Source = "https://github.com/OWNER/tieconv"\nurl: https://owner.github.io/tieconv/\n'
    assert addresses.fill(settings) == "".join(f"# {line}\n" for line in settings.splitlines())


def _files() -> list[Path]:
    paths = [path for pattern in ("*.md", "*.y*ml", "*.toml", ".*.yaml", "*.cff") for path in ROOT.glob(pattern)]
    paths += [path for folder in ("docs", ".github", "tieconv") for path in (ROOT / folder).rglob("*.*")]
    suffixes = {".md", ".py", ".toml", ".yml", ".yaml", ".cff"}
    filled = ROOT / "docs" / "pages"  # what the pages are filled from
    return [
        path for path in paths if path.suffix in suffixes and path.name != "CHANGELOG.md" and filled not in path.parents
    ]


def test_the_address_is_the_setting_s_everywhere() -> None:
    """No committed file names another repository of tieconv."""
    for path in _files():
        addresses = re.findall(r"https://github\.com/[\w-]+/tieconv\b", path.read_text(encoding="utf-8"))
        assert set(addresses) <= {version.REPOSITORY}, path


@pytest.mark.skipif(version.PUBLISHED, reason="a release is published: the lines may name it")
def test_before_a_release_nobody_is_told_to_install_one() -> None:
    """Every install line of the pages follows the setting."""
    for path in _files():
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"pipx? install (-\S+ )*['\"]?tieconv(\[[\w,]+\])?(['\"`]|\s|$)", line), path
