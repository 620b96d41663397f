"""Every class of the installed transformers with an input embedding and a head is in the table, or has its reason."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from fixtures import zoo
from tieconv.architectures import class_table as table

SPEC = importlib.util.find_spec("transformers")
pytestmark = pytest.mark.skipif(SPEC is None, reason="transformers is not installed")
_CLASS = re.compile(r"class (\w+)\(([^)]*)\)")
_HEAD = re.compile(r"get_output_embeddings|self\.\w*(?:lm_head|codec_head)s? = ")
_TIED = re.compile(r"_tied_weights_keys.*?[{\[](.*?)[}\]]", re.DOTALL)
_MODEL = re.compile(r"PreTrained|Model|For[A-Z]|Generation")


def with_heads() -> set[str]:
    """The classes whose source has an output embedding, or ties one."""
    assert SPEC is not None and SPEC.origin is not None
    found = set()
    for path in Path(SPEC.origin).parent.glob("models/*/modeling_*.py"):
        for block in re.split(r"^(?=class \w+\()", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            made = _CLASS.match(block)
            if made is None or not _MODEL.search(made[2]) or made[1].endswith("PreTrainedModel"):
                continue
            tied = _TIED.search(block)
            if _HEAD.search(block) or (tied and re.search(r"head|decoder\.weight|output_projection", tied[1])):
                found.add(made[1])
    return found


def test_every_class_with_a_head_is_known() -> None:
    """No class is missing by accident, and no reason is kept for a class that the table has."""
    heads, known = with_heads(), set(table.names())
    assert len(heads) > 300
    assert heads - known - zoo.LEFT_OUT.keys() - zoo.UNBUILDABLE.keys() == set()
    assert known & zoo.LEFT_OUT.keys() == set()
    assert set(zoo.MORE) <= known
    assert all(zoo.LEFT_OUT.values())
