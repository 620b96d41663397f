"""The verifier believes a record of copied ranges only where file, shift and range are those of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tieconv.checkpoint.write_plan import OutputWeights
from tieconv.errors import VerificationError
from tieconv.execute.verify import Verifier
from tieconv.execute.write import Record, Shared

from . import models

NAME, OTHER = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def written(shards: Path, new: Path) -> tuple[OutputWeights, int]:
    """A copy of the first shard with one wrong byte in its last tensor, what was planned, and where the byte is."""
    data = bytearray((shards / NAME).read_bytes())
    file = models.read_header(shards / NAME)
    wrong = file.tensors[-1].range.start + 7
    data[wrong] ^= 1
    new.mkdir()
    (new / NAME).write_bytes(data)
    return OutputWeights(NAME, tuple(map(models.kept, file.tensors)), file.metadata), wrong


def verify(shards: Path, new: Path, output: OutputWeights, *shared: Shared, full: bool = False) -> None:
    Verifier(shards, new, Record(shared={NAME: list(shared)}), full, lambda _: None).weights(output, NAME)


@pytest.mark.parametrize(
    "forged",
    [
        lambda wrong: Shared(0, 1 << 20, OTHER, 0),
        lambda wrong: Shared(0, 1 << 20, "absent", 0),
        lambda wrong: Shared(0, 1 << 20, NAME, 8),
        lambda wrong: Shared(0, 1 << 20, NAME, -1),
        lambda wrong: Shared(0, wrong, NAME, 0),
        lambda wrong: Shared(wrong + 1, 1 << 20, NAME, 0),
    ],
    ids=["another file", "no file", "shifted", "shifted back", "ends before", "starts after"],
)
def test_a_forged_record_is_not_trusted(forged, shards: Path, tmp_path: Path) -> None:
    """A range of the wrong file, at the wrong shift or beside the damage proves nothing: the bytes are compared."""
    output, wrong = written(shards, tmp_path / "new")
    with pytest.raises(VerificationError, match=f"byte {wrong:,} of the file") as caught:
        verify(shards, tmp_path / "new", output, forged(wrong))
    assert caught.value.code == "verify.bytes"
    assert models.tensors_of().keys() >= {output.tensors[-1].name}
    assert output.tensors[-1].name in caught.value.message


def test_several_ranges_leave_no_gap(shards: Path, tmp_path: Path) -> None:
    """Ranges in any order, overlapping, that leave out one byte leave that byte to be compared."""
    output, wrong = written(shards, tmp_path / "new")
    around = [Shared(wrong + 1, 1 << 20, NAME, 0), Shared(0, wrong - 9, NAME, 0), Shared(wrong - 20, wrong, NAME, 0)]
    with pytest.raises(VerificationError, match=f"byte {wrong:,} of the file"):
        verify(shards, tmp_path / "new", output, *around)


def test_what_the_kernel_copied_is_trusted(shards: Path, tmp_path: Path) -> None:
    """The same damage under a true record passes the structural proof, and not the full one."""
    output, wrong = written(shards, tmp_path / "new")
    verify(shards, tmp_path / "new", output, Shared(0, 1 << 20, NAME, 0))
    with pytest.raises(VerificationError, match=f"byte {wrong:,} of the file"):
        verify(shards, tmp_path / "new", output, Shared(0, 1 << 20, NAME, 0), full=True)


@pytest.mark.parametrize(("key", "file"), [("tokenizer.json", "config.json"), ("config.json", "tokenizer.json")])
def test_a_companion_of_another_name(key: str, file: str, model: Path, tmp_path: Path) -> None:
    """A record of another companion, or of another source, proves nothing of this one."""
    new = tmp_path / "new"
    new.mkdir()
    data = bytearray((model / "tokenizer.json").read_bytes())
    data[-3] ^= 1
    (new / "tokenizer.json").write_bytes(data)
    record = Record(shared={key: [Shared(0, len(data), file, 0)]})
    with pytest.raises(VerificationError, match=r"tokenizer.json differs from its source at byte 9,0\d\d") as caught:
        Verifier(model, new, record, False, lambda _: None).companion("tokenizer.json")
    assert caught.value.code == "verify.bytes"
