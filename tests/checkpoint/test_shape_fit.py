"""One definition of a shape that fits, for loaders, rules and vocabulary sizes."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import tieconv as api
from tests.checks.fixtures.model import HEAD, LLAMA, flagged, matrix, save
from tieconv.architectures.effective_flag import vocabulary_rows
from tieconv.checkpoint.inspection import NotCompared
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, fits
from tieconv.loaders.load import TRANSFORMERS_5, load
from tieconv.loaders.loaded import Cause

EMBEDDING = "model.embed_tokens.weight"
ROOT = Path(__file__).parents[2] / "tieconv"
USERS = ("architectures/effective_flag.py", "checks/evidence.py", "loaders/evidence.py")


def tensor(*shape: int) -> TensorRecord:
    return TensorRecord("t", "F32", shape, ByteRange("f", 0, 0))


@pytest.mark.parametrize(
    ("shape", "reference", "expected"),
    [
        ((8, 4), (8, 4), True),
        ((9, 4), (8, 4), False),
        ((4, 8), (8, 4), False),  # transposed
        ((4, 4), (4, 4), True),  # transposed or not, a square matrix has one shape
        ((0,), (8, 4), False),  # a placeholder
        ((8, 4), (0,), False),
        ((0, 4), (8, 4), False),
        ((0,), (0,), True),
        ((0, 4), (0,), False),
        ((8,), (8,), True),
        ((8,), (8, 1), False),
        ((), (1,), False),
    ],
)
def test_a_shape_fits(shape: tuple[int, ...], reference: tuple[int, ...], expected: bool) -> None:
    """Equal shapes fit, whatever they hold; and the answer is the same the other way round."""
    assert fits(tensor(*shape), tensor(*reference)) is fits(tensor(*reference), tensor(*shape)) is expected


@pytest.mark.parametrize("shape", [(9, 4), (4, 8), (0,), (0, 4)])
def test_loaders_rules_and_sizes_agree(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A tied head that does not fit: transformers 5 refuses it, a rule reports it, and its rows are not counted."""
    config = {**flagged(LLAMA, True), "vocab_size": 8}
    head = np.ones(shape, dtype="<f4")
    model = api.inspect(save(tmp_path / "m", config, {EMBEDDING: matrix(8, 4), HEAD: head}))
    assert load(model, TRANSFORMERS_5).refused(Cause.SHAPES) is not None
    assert {"TIE010", "STO002"} & {finding.rule for finding in model.findings}
    assert HEAD not in vocabulary_rows(model)
    assert not any(finding.remedy and " untie " in finding.remedy.command for finding in model.findings)


@pytest.mark.parametrize("module", USERS)
def test_no_module_compares_shapes_of_a_group_itself(module: str) -> None:
    """Each asks `fits`."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and ".shape !=" in ast.unparse(node)]
    assert not compared and "import fits" in (ROOT / module).read_text(encoding="utf-8")


def test_tensors_that_may_be_copies() -> None:
    """Those of one type and shape, but for one of each form; empty ones waste nothing."""
    pair, alone, empty = (
        TensorRecord("t", "F32", shape, ByteRange("f", 0, 4 * shape[0] * shape[1]))
        for shape in ((2, 3), (3, 2), (0, 4))
    )
    assert NotCompared.among([pair, alone, pair, pair, empty, empty]) == NotCompared(3, 48)
    assert NotCompared.among([pair, alone, pair]) == NotCompared(2, 24)
    assert NotCompared.among([pair, alone]) is None
