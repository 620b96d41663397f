"""A quantised embedding and head of a class that tieconv does not know are guessed from names and unpacked shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inspection.quantised.stored_models import config, matrix, save, tables, under
from tests.inspection.quantised.test_broken_matrices import COLUMNS, ROWS, WHOLE, stored
from tieconv import inspect
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.finding import Level

SCHEMES = [scheme for scheme in WHOLE if scheme not in ("HQQ", "bitsandbytes 4 bit")]
"""HQQ has no shape that tieconv reads, and that of bitsandbytes is in bytes that are not read for a guess."""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("both", [False, True])
def test_the_pair(scheme: str, both: bool, tmp_path: Path) -> None:
    entries, parts = WHOLE[scheme]
    unknown = config(ROWS, COLUMNS, **entries) | {"architectures": ["NewForCausalLM"], "model_type": "new"}
    embedding = {"model.embed_tokens.weight": stored("F32", ROWS, COLUMNS)}
    tensors = (under("model.embed_tokens", parts) if both else embedding) | under("lm_head", parts)
    inspection = inspect(save(tmp_path, unknown, tensors))
    assert inspection.family.knowledge is Knowledge.PATTERN
    assert matrix(inspection).shape == (ROWS, COLUMNS)
    assert len(tables(inspection).matrices) == 1 + both
    assert [finding for finding in inspection.findings if finding.level is Level.ERROR] == []
