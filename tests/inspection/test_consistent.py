"""Whether a tie group is consistent: what is stored, held against what is declared."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import HEAD, LLAMA, flagged, llama, matrix, save
from tests.checks.fixtures.more import pef003_good
from tieconv.checkpoint.inspection import Depth

HEADS = {"absent": None, "copy": matrix(), "other": matrix(seed=1), "longer": matrix(9), "scaled": matrix() * 2}
EXPECTED = {
    (True, "absent"): (True, True, 0),
    (True, "copy"): (None, True, 128),
    (True, "other"): (None, False, 0),
    (True, "longer"): (None, False, 0),
    (True, "scaled"): (None, False, 0),
    (False, "absent"): (False, False, 0),
    (False, "copy"): (True, True, 128),
    (False, "other"): (True, True, 0),
    (False, "longer"): (True, True, 0),
    (False, "scaled"): (True, True, 0),
}
"""By the flag and the head: consistent from headers alone, from bytes, and the bytes stored twice."""


@pytest.mark.parametrize(("tied", "head"), EXPECTED)
def test_consistent(tied: bool, head: str, tmp_path: Path) -> None:
    """An untied group needs every name and no comparison; a tied one needs equal bytes, which headers cannot tell."""
    tensors = HEADS[head]
    path = save(tmp_path / "model", flagged(LLAMA, tied), llama(**({} if tensors is None else {"head": tensors})))
    shallow, deep = (api.inspect(path, depth=depth).word_tie for depth in (Depth.HEADER, Depth.CANDIDATES))
    assert shallow is not None and deep is not None
    assert (shallow.consistent, deep.consistent, deep.bytes_wasted) == EXPECTED[tied, head]
    assert shallow.bytes_wasted == 0
    assert [member.name for member in deep.members][1:] == [HEAD]


def test_an_adapter_leaves_the_tie_to_its_base_model(tmp_path: Path) -> None:
    """No flag of an adapter says that a model is tied, and nothing is known of it."""
    evidence = api.inspect(pef003_good(tmp_path / "model"))
    assert (evidence.config.effective, evidence.config.known, evidence.ties) == (False, False, ())
    assert evidence.config.why == "Unknown: the base model decides whether the pair is tied."
