"""Answers of the API that are not what it gives: one sentence each, and never a bug in tieconv."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hub.conftest import Run, refused
from tests.hub.stub import Hub

DEEP = "[" * 10_000 + "]" * 10_000
ANSWERS = {
    "null": "null", "string": '"text"', "number": "7", "list": "[]", "object": "{}", "list of nulls": "[null]",
    "deep": DEEP, "deep object": '{"a":' * 10_000 + "1" + "}" * 10_000, "no JSON": "<html>", "empty": "",
}  # fmt: skip
SHA = "0" * 40
FILE = '{"sha": "%s", "id": "org/m", "siblings": [%s]}'
LISTINGS = {
    "siblings object": f'{{"sha": "{SHA}", "id": "org/m", "siblings": {{}}}}',
    "siblings string": f'{{"sha": "{SHA}", "id": "org/m", "siblings": "abc"}}',
    "siblings of nulls": FILE % (SHA, "null"),
    "siblings of lists": FILE % (SHA, "[]"),
    "file without a name": FILE % (SHA, "{}"),
    "name is a list": FILE % (SHA, '{"rfilename": [], "size": 1, "blobId": "x"}'),
    "size is text": FILE % (SHA, '{"rfilename": "a", "size": "1", "blobId": "x"}'),
    "lfs is text": FILE % (SHA, '{"rfilename": "a", "size": 1, "lfs": "x"}'),
    "lfs is empty": FILE % (SHA, '{"rfilename": "a", "size": 1, "lfs": {}}'),
    "lfs without a hash": FILE % (SHA, '{"rfilename": "a", "size": 1, "lfs": {"size": 1, "pointerSize": 1}}'),
    "tags deep": f'{{"sha": "{SHA}", "id": "org/m", "tags": {DEEP}}}',
    "date is a list": f'{{"sha": "{SHA}", "id": "org/m", "lastModified": []}}',
    "card is text": f'{{"sha": "{SHA}", "id": "org/m", "cardData": "x", "siblings": []}}',
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("answer", [*ANSWERS, *LISTINGS])
def test_listing(answer: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """The listing of a repository."""
    hub.add("org/m", models / "llama-tied")
    hub.answers["api:org/m"] = (ANSWERS | LISTINGS)[answer]
    error, hint = refused(tieconv("inspect", "hf://org/m"))
    assert "hf://org/m" in error and "unexpected" not in error and "bug in tieconv" not in hint


@pytest.mark.parametrize("answer", [name for name in ANSWERS if name not in ("list", "empty", "no JSON", "number")])
def test_models_of_an_owner(answer: str, hub: Hub, tieconv: Run) -> None:
    """The list of models."""
    hub.answers["api:models"] = ANSWERS[answer]
    error, hint = refused(tieconv("check", "hf://org/*"))
    assert "unexpected" not in error and "bug in tieconv" not in hint


@pytest.mark.parametrize("answer", ["null", "string", "object", "list of nulls", "deep", "no JSON"])
def test_tree(answer: str, hub: Hub, tieconv: Run, models: Path) -> None:
    """The list of files that huggingface_hub asks for as it fetches."""
    hub.add("org/m", models / "llama-tied")
    hub.answers["tree:org/m"] = ANSWERS[answer]
    error, hint = refused(tieconv("untie", "hf://org/m", "-o", "out"))
    assert "hf://org/m" in error and "unexpected" not in error and "bug in tieconv" not in hint


@pytest.mark.parametrize("answer", ["null", "string", "list of nulls", "deep"])
def test_error(answer: str, hub: Hub, hasty: Run, models: Path) -> None:
    """What a server says of an error is not read, so that its form does not matter."""
    hub.add("org/m", models / "llama-tied")
    hub.errors = ANSWERS[answer]
    for words in (("inspect", "hf://org/none"), ("untie", "hf://org/none", "-o", "out")):
        assert "is not on the Hub" in refused(hasty(*words))[0]


def test_many(hub: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """A model with such a listing is a row, and hides no other."""
    hub.add("org/m", models / "llama-tied")
    hub.add("org/n", Path(shutil.copytree(models / "llama-tied", tmp_path / "n")))
    hub.answers["api:org/n"] = "null"
    result = tieconv("check", "hf://org/m", "hf://org/n", "--depth", "full")
    assert result.returncode == 2 and "hf://org/m: ok" in result.stdout
    assert "the response of the Hub is malformed" in result.stdout + result.stderr
    assert "unexpected" not in result.stdout + result.stderr
