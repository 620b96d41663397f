"""Where bytes go: congruent with the source, merged into runs, and readable by the safetensors library."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tests.patience import examples
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.checkpoint.write_plan import OutputTensor, OutputWeights, Promises, Zeros
from tieconv.execute import Target, execute
from tieconv.execute.file_layout import Piece, header, padding
from tieconv.execute.file_layout import tensor_pieces as pieces
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
