"""`fleet` over models on the Hub: the local findings, changed commits alone again, and copies of each model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.hub.conftest import Run
from tests.hub.stub import Hub

NAMES = ("llama-tied", "llama-duplicated", "llama-headless-config", "t5")


@pytest.fixture
def org(hub: Hub, models: Path) -> Hub:
    """Four models of one owner, two of which have a finding, and one of another owner."""
    for name in NAMES:
        hub.add(f"org/{name}", models / name)
    hub.add("other/tied", models / "llama-tied")
    return hub


def results(directory: Path, verb: str) -> dict[str, dict[str, object]]:
    """The last line of each model, by its name."""
    lines = map(json.loads, (directory / f"{verb}.jsonl").read_text().splitlines())
    if verb != "check":
        return {line["source"].rpartition("/")[2]: line for line in lines}
    checked = [(line, line["report"]["models"][0]) for line in lines]
    return {model["source"].rpartition("/")[2]: line | {"checked": model} for line, model in checked}


def rules(directory: Path) -> dict[str, list[str]]:
    lines = results(directory, "check")
    return {name: sorted(entry["rule"] for entry in line["checked"]["findings"]) for name, line in lines.items()}  # type: ignore[index]


def test_the_findings_are_the_local_ones(org: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """Of one owner's models; each line has the commit."""
    for name in NAMES:
        shutil.copytree(models / name, tmp_path / "local" / name)
    assert (
        tieconv("fleet", "check", tmp_path / "local", "-o", tmp_path / "here", "-q", "--depth", "full").returncode == 0
    )
    checked = tieconv("fleet", "check", "hf://org/*", "-o", tmp_path / "far", "-q", "-j", "2", "--depth", "full")
    assert checked.returncode == 0, checked.stderr
    assert rules(tmp_path / "far") == rules(tmp_path / "here")
    commits = {name: line["fingerprint"] for name, line in results(tmp_path / "far", "check").items()}
    assert commits == {name: org.repos[f"org/{name}"].commit for name in NAMES}


def test_a_changed_commit_is_read_again(org: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """The second run asks for no file; after one commit, for those of that model alone."""
    words = ("fleet", "check", "hf://org/*", "-o", tmp_path / "runs", "--depth", "full")
    assert "4 read, 0 unchanged" in tieconv(*words).stderr
    org.requests.clear()
    assert "0 read, 4 unchanged" in tieconv(*words).stderr
    assert not [request for request in org.requests if "/resolve/" in request.path]
    org.add("org/t5", models / "llama-duplicated").commit = "f" * 40
    org.requests.clear()
    assert "1 read, 3 unchanged" in tieconv(*words).stderr
    asked = {request.path for request in org.requests if "/resolve/" in request.path}
    assert asked and all("/org/t5/" in path for path in asked)
    assert rules(tmp_path / "runs")["t5"] == ["TIE002"]


def test_what_was_not_compared_is_counted(org: Hub, tieconv: Run, tmp_path: Path) -> None:
    """By default samples of a copy are read, which prove nothing. The report says so, and how to compare."""
    assert tieconv("fleet", "check", "hf://org/*", "-o", tmp_path / "runs", "-q").returncode == 0
    text = tieconv("fleet", "report", tmp_path / "runs", "--no-config").stdout
    assert "\n1 model with tied names that were not compared; to compare: --depth full\n" in text
    assert "not compared; use --depth full" in (tmp_path / "runs" / "report.html").read_text()
    document = json.loads(tieconv("fleet", "report", tmp_path / "runs", "--no-config", "--json").stdout)
    assert (document["uncompared"], document["unread"]) == (1, 0)


def test_other_commands(org: Hub, tieconv: Run, tmp_path: Path) -> None:
    """`inspect` has the document of the command alone. `convert` writes each model below the run."""
    inspected = tieconv("fleet", "inspect", "hf://org/t5", "hf://org/llama-tied", "-o", tmp_path / "runs", "-q")
    assert inspected.returncode == 0, inspected.stderr
    alone = json.loads(tieconv("inspect", "hf://org/t5", "--json").stdout)
    document = results(tmp_path / "runs", "inspect")["t5"]["report"]
    assert isinstance(document, dict) and document["ties"] == alone["ties"]
    words = ("fleet", "convert", "hf://org/t5", "-o", tmp_path / "runs", "-q", "--", "--to", "torch")
    assert tieconv(*words).returncode == 0
    output = results(tmp_path / "runs", "convert")["t5"]["output"]
    assert Path(str(output), "pytorch_model.bin").exists()
