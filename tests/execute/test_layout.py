"""Where bytes go: congruent with the source, in merged runs, and in parts of an upload within the limits."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from safetensors import safe_open

from tests.hub.models import same_head, sharded
from tests.patience import examples
from tieconv import plan_retie, plan_untie
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.checkpoint.write_plan import InlineBytes, OutputTensor, OutputWeights, Piece, Promises, Zeros
from tieconv.execute import remote_files as multipart
from tieconv.execute.carry_out import execute
from tieconv.execute.file_layout import header, padding, tensor_pieces as pieces
from tieconv.execute.remote_files import Limits, Part, RemoteFile, published, remote_file, split_parts
from tieconv.execute.target import Target
from tieconv.formats.safetensors import PAGE

from . import models


def test_neighbours_become_one_run(model: Path) -> None:
    """Tensors that lie side by side in the source are copied as one; a gap or another file splits."""
    file = models.checkpoint(model).files[0]
    tensors = [models.kept(t) for t in file.tensors]
    assert len(list(pieces(tensors))) == 1
    found = list(pieces([tensors[0], tensors[2]]))
    assert [piece.offset for piece in found] == [0, tensors[0].nbytes]


def test_the_largest_share_wins() -> None:
    """Padding serves the most bytes, not the first run; a shift that breaks alignment by 8 is not taken."""
    small = Piece(0, ByteRange("a", 8 + 64, 8 + 64 + PAGE))
    large = Piece(PAGE, ByteRange("a", 100_000 - 100_000 % 8, 300_000))
    shift = padding([small, large], 512)
    assert (512 + shift + PAGE - 100_000) % PAGE == 0
    odd = Piece(0, ByteRange("a", 5, 5 + 10 * PAGE))
    assert padding([odd], 512) == 0


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5 * PAGE).map(lambda n: n // 8 * 8), min_size=1, max_size=8),
    pad=st.integers(0, 600).map(lambda n: n * 8),
    drop=st.sets(st.integers(0, 7)),
    extra=st.sampled_from([0, 8, 56, 4096, 5000]),
    metadata=st.sampled_from([None, {}, {"format": "pt"}]),
)
def test_any_tensors_any_drop(
    sizes: list[int], pad: int, drop: set[int], extra: int, metadata: dict[str, str] | None
) -> None:
    """Whatever is dropped or added: the library reads it, all bytes agree, the longest run is congruent."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "source"
        root.mkdir()
        content = {f"t{i}": ("U8", (n,), random.Random(i).randbytes(n)) for i, n in enumerate(sizes)}
        models.write_weights(root / "model.safetensors", content, metadata, pad)
        file = models.checkpoint(root).files[0]
        tensors = [models.kept(t) for t in file.tensors if int(t.name[1:]) not in drop]
        if extra:
            tensors.insert(0, OutputTensor("zeros", "U8", (extra,), Zeros(extra)))
        output = OutputWeights("model.safetensors", tuple(tensors), metadata)
        plan = models.plan_of(root, [output], promises=Promises(None, ()))
        execute(plan, Target(Path(scratch) / "out"), reinspect=models.inspect)
        _check(Path(scratch) / "out" / "model.safetensors", output, content)


def _check(path: Path, output: OutputWeights, content: models.Tensors) -> None:
    written = models.read_header(path)
    assert written.data_start % 8 == 0
    assert written.metadata == output.metadata
    assert [t.name for t in output.tensors if t.nbytes] == [t.name for t in written.tensors if t.nbytes]
    found = models.tensor_bytes(path)
    assert found == {t.name: content[t.name][2] if t.name in content else bytes(t.nbytes) for t in output.tensors}
    with safe_open(path, "numpy") as opened:
        assert sorted(opened.keys()) == sorted(found)
        assert all(opened.get_tensor(name).tobytes() == data for name, data in found.items())
    runs = [p for p in pieces(output.tensors) if isinstance(p.content, ByteRange) and p.size >= PAGE]
    congruent = [p.size for p in runs if (p.content.start - written.data_start - p.offset) % PAGE == 0]  # type: ignore[union-attr]
    if runs:
        assert sum(congruent) >= max(p.size for p in runs)
    assert len(header(output)) == written.data_start


SMALL = Limits(least=50, most=500, upload=120, copy=200)
sizes = st.one_of(st.integers(1, 120), st.integers(45, 55), st.integers(400, 1500))


@given(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=12))
def test_parts_cover_each_byte_once_within_the_limits(pieces: list[tuple[int, bool]]) -> None:
    parts = split_parts(pieces, SMALL)
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == sum(size for size, _ in pieces)
    assert all(part.size >= SMALL.least for part in parts[:-1]) and all(0 < part.size <= SMALL.most for part in parts)
    starts = [sum(size for size, _ in pieces[:number]) for number in range(len(pieces))]
    for part in parts:
        if part.piece is not None:
            size, copies = pieces[part.piece]
            assert copies and starts[part.piece] <= part.start and part.end <= starts[part.piece] + size


@given(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=12))
def test_no_more_is_uploaded_than_the_limits_need(pieces: list[tuple[int, bool]]) -> None:
    """Of each piece that the server can copy: the smallest part before it, and a rest below the smallest part."""
    uploaded = sum(part.size for part in split_parts(pieces, SMALL) if part.piece is None)
    needed = sum(min(size, 2 * SMALL.least) if copies else size for size, copies in pieces)
    assert uploaded <= needed


@given(st.data())
def test_the_parts_make_the_bytes_of_the_pieces(data: st.DataObject) -> None:
    """Whatever a server copies and tieconv uploads, the file is its pieces one after the other."""
    source = bytes(data.draw(st.binary(min_size=3000, max_size=3000)))
    pieces: list[Any] = [InlineBytes(data.draw(st.binary(min_size=1, max_size=150)))]
    for _ in range(data.draw(st.integers(0, 6))):
        start, size = data.draw(st.integers(0, 2000)), data.draw(sizes)
        pieces.append(ByteRange("a", start, min(start + size, 3000)) if data.draw(st.booleans()) else Zeros(size))
    copies = [isinstance(piece, ByteRange) for piece in pieces]
    parts = split_parts([(piece.size, can) for piece, can in zip(pieces, copies, strict=True)], SMALL)
    file = RemoteFile("b", tuple(pieces), tuple(parts))
    written = b"".join(_bytes(span, source) for part in parts for span in file.spans(part.start, part.end))
    assert written == b"".join(_bytes(piece, source) for piece in pieces)
    for part in parts:
        if part.piece is not None:
            assert [type(span) for span in file.spans(part.start, part.end)] == [ByteRange]


def _bytes(span: Any, source: bytes) -> bytes:
    if isinstance(span, ByteRange):
        return source[span.start : span.end]
    return span.data if isinstance(span, InlineBytes) else bytes(span.size)


def test_the_largest_files_have_few_enough_parts() -> None:
    """5 TiB, the largest object of S3, whether copied or after a small header."""
    for spans in ([(5 << 40, True)], [(1000, False), (5 << 40, True)]):
        parts = split_parts(spans, multipart.S3)
        assert len(parts) <= multipart.S3.count and all(part.size <= multipart.S3.most for part in parts)
        assert sum(part.size for part in parts if part.piece is None) <= multipart.S3.least


def test_the_last_part_may_be_small() -> None:
    assert split_parts([(10, False)], SMALL) == [Part(0, 10, None)]
    assert split_parts([(60, False), (10, True)], SMALL) == [Part(0, 60, None), Part(60, 70, 1)]


@pytest.mark.parametrize("least", [1_000, 100_000, 10_000_000])
def test_a_planned_shard_is_made_of_the_bytes_of_the_local_write(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """For `retie` and `untie`, with small, middling and too large smallest parts."""
    monkeypatch.setattr(multipart, "S3", Limits(least=least, upload=4 * least, copy=3 * least))
    model = sharded(tmp_path / "m", 3, head=same_head(), tied=True)
    tied = tmp_path / "tied"
    for planned, source, out in ((plan_retie(model), model, tied), (plan_untie, tied, tmp_path / "untied")):
        write = planned if not callable(planned) else planned(source)
        write.execute(out)
        assert write.plan.weights and published(write.plan) == ("config.json", "model.safetensors.index.json")
        for output in write.plan.weights:
            file = remote_file(write.plan, output)
            made = b"".join(
                (source / span.file).read_bytes()[span.start : span.end] if isinstance(span, ByteRange) else span.data
                for part in file.parts
                for span in file.spans(part.start, part.end)
                if not isinstance(span, Zeros)
            )
            assert made == (out / output.name).read_bytes()
            assert (file.bytes_copied == 0) is (least > 5_000_000)
