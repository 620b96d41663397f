"""The install command of hints and docs, from each origin that pip records."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tieconv import install, version

ROOT = Path(__file__).parents[2]
ADDRESS = "https://github.com/someone/tieconv"


def recorded(monkeypatch: pytest.MonkeyPatch, record: dict[str, object] | None) -> None:
    monkeypatch.setattr(install, "_direct_url", lambda: record)


@pytest.mark.parametrize(
    ("published", "repository", "wanted"),
    [
        (True, ADDRESS, "tieconv[onnx,torch]"),
        (False, ADDRESS, f"tieconv[onnx,torch] @ git+{ADDRESS}"),
        (False, "https://github.com/OWNER/tieconv", ".[onnx,torch]"),
    ],
)
def test_the_documented_requirement_follows_the_settings(
    monkeypatch: pytest.MonkeyPatch, published: bool, repository: str, wanted: str
) -> None:
    """A release, else the repository, else a clone of it: never an address that does not exist."""
    monkeypatch.setattr(install, "PUBLISHED", published)
    monkeypatch.setattr(install, "REPOSITORY", repository)
    recorded(monkeypatch, None)
    assert install.documented_requirement("onnx", "torch") == wanted
    assert install.install_command("onnx", "torch") == f"pip install {shlex.quote(wanted)}"


def test_a_hint_installs_from_where_tieconv_was_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory, an editable one, a wheel, a commit, an archive on a server, an index."""
    wheel = tmp_path / "with space" / "tieconv-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    recorded(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {}})
    assert install.install_command("hub") == f"pip install '{tmp_path}[hub]'"
    recorded(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install.install_command("gpu", upgrade=True) == f"pip install --upgrade -e '{tmp_path}[gpu]'"
    recorded(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert install.install_command("hub") == f"pip install '{wheel}[hub]'"
    recorded(monkeypatch, {"url": ADDRESS, "vcs_info": {"vcs": "git", "commit_id": "abc123"}})
    assert install.install_command("hub") == f"pip install 'tieconv[hub] @ git+{ADDRESS}@abc123'"
    recorded(monkeypatch, {"url": f"{ADDRESS}/x.whl", "archive_info": {}})
    assert install.install_command("hub") == f"pip install 'tieconv[hub] @ {ADDRESS}/x.whl'"
    recorded(monkeypatch, {})
    assert install.install_command("hub") == "pip install 'tieconv[hub]'"


def test_a_hint_names_no_file_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel that was deleted after the installation is not offered again."""
    recorded(monkeypatch, {"url": (tmp_path / "gone.whl").as_uri(), "archive_info": {}})
    assert install.install_command("hub") == f"pip install {shlex.quote(install.documented_requirement('hub'))}"


@pytest.mark.parametrize(("text", "wanted"), [("", {}), ("{", {}), ("[]", {}), ('{"url": "u"}', {"url": "u"})])
def test_pip_s_record_is_read(monkeypatch: pytest.MonkeyPatch, text: str, wanted: dict[str, object]) -> None:
    """A record that is missing or damaged gives the command for the package index."""

    class Installed:
        @staticmethod
        def read_text(name: str) -> str | None:
            assert name == "direct_url.json"
            return text or None

    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Installed)
    install._direct_url.cache_clear()
    try:
        assert install._direct_url() == wanted
    finally:
        install._direct_url.cache_clear()


@pytest.mark.parametrize("published", [True, False])
def test_the_documented_requirement_is_one_by_the_standard(monkeypatch: pytest.MonkeyPatch, published: bool) -> None:
    """`packaging`, which pip contains, reads it."""
    monkeypatch.setattr(install, "PUBLISHED", published)
    monkeypatch.setattr(install, "REPOSITORY", ADDRESS)
    requirement = Requirement(install.documented_requirement("onnx"))
    assert (requirement.name, requirement.extras) == ("tieconv", {"onnx"})
    assert requirement.url == (None if published else f"git+{ADDRESS}")


def test_starting_a_command_does_not_look_for_the_origin() -> None:
    """The record of the installation is read for a hint alone."""
    code = (
        "import sys, json\nfrom tieconv.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(json.dumps('tieconv.install' in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert json.loads(done.stderr) is False


def test_the_settings_are_whole() -> None:
    """The address is one of GitHub without a trailing slash, as the links in reports are built from it."""
    assert version.REPOSITORY.startswith("https://github.com/") and version.REPOSITORY.count("/") == 4
