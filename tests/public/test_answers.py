"""Files of public shapes: the whole answer about each, and what no answer about a healthy file may say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from fixtures.public import ANSWERS, PUBLIC
from fixtures.public.__main__ import answer
from fixtures.public.layouts import LAYOUTS, build
from tests.public import real_files
from tieconv.architectures import guess


def identity(layout: dict[str, Any]) -> str:
    return str(layout["name"])


@pytest.mark.parametrize("name", PUBLIC)
def test_the_answer_is_the_committed_one(name: str, tmp_path: Path) -> None:
    """`python -m fixtures.public` writes the transcripts anew; a change of one is reviewed as a diff."""
    folder = tmp_path / name
    folder.mkdir()
    assert answer(name, folder) == (ANSWERS / f"{name}.txt").read_text(encoding="utf-8")


def test_no_answer_is_left_over() -> None:
    assert {path.stem for path in ANSWERS.iterdir()} == set(PUBLIC)


@pytest.mark.parametrize("layout", LAYOUTS, ids=identity)
def test_the_pair_is_named_and_nothing_is_claimed_of_it(layout: dict[str, Any], tmp_path: Path) -> None:
    """The embedding and the head are those of the project; whether they tie is unknown."""
    evidence = api.inspect(build(layout, tmp_path))
    embedding, head = evidence.head.input_embedding, evidence.head.output_head
    assert embedding is not None and embedding.name == layout["embedding"]
    assert (head and head.name) == layout["head"]
    assert evidence.family.convention == layout["project"]
    assert evidence.config.to_dict()["effective"] is None
    tensors = evidence.checkpoint.tensors
    shared = head is not None and tensors[head.name].range == tensors[embedding.name].range
    assert evidence.config.why.startswith("Unknown: ")
    assert ("share one storage" in evidence.config.why) is shared
    assert {str(finding.level) for finding in evidence.findings} <= {"note"}


def test_every_convention_is_held_by_a_layout() -> None:
    """Each pair of the table has a source and a file of its shape; a layout's project is that of the first pair."""
    held = [(layout["embedding"], layout["head"]) for layout in LAYOUTS if layout["head"]]
    for pair in guess.pairs():
        assert pair.source.startswith("https://")
        assert any(pair.fits(embedding, head) for embedding, head in held), pair.project


def test_real_files_are_pinned_and_judged(tmp_path: Path) -> None:
    """The scheduled job knows at least 54 files of 29 packages by version, and a changed answer is a fault."""
    known = [(package, answers) for packages in real_files.table().values() for package, answers in packages.items()]
    assert len(known) >= 29 and sum(len(answers) for _, answers in known) >= 54
    for package, answers in known:
        assert re.fullmatch(r"[\w-]+==[\w.]+|(@\w+/)?[\w-]+@[\w.]+", package), package
        assert all(lines and any("check " in line for line in lines) for lines in answers.values()), package
    copy = tmp_path / "a+b@1" / "m.onnx"
    copy.parent.mkdir()
    shutil.copy(Path(__file__).parents[2] / "fixtures" / "exported" / "optimum-llama" / "model.onnx", copy)
    new_answers = real_files.answers("npm", "a/b@1", ["m.onnx"], tmp_path)
    assert new_answers["m.onnx"][0].startswith("Tied: ") and "inspect 0, check 0, dedup 0" in new_answers["m.onnx"]
    assert not real_files.faults("npm", "a/b@1", new_answers, tmp_path)
    assert len(real_files.faults("npm", "a/b@1", {"m.onnx": ["Untied"]}, tmp_path)) == 1


def test_every_public_file_has_a_source() -> None:
    assert all(public.source for public in PUBLIC.values())
