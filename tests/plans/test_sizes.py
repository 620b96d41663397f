"""Where bytes go: sizes as users write them, the place of each tensor in a shard, the live part of a storage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieconv.checkpoint.weight_file import BITS, ByteRange, Storage, TensorRecord, nbytes
from tieconv.checkpoint.write_plan import OutputStorage, OutputTensor
from tieconv.plans.verbs.convert import split_shards, widest_first
from tieconv.plans.verbs.dedup import trimmed
from tieconv.text import parse_size

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.booleans(), st.booleans())
def test_a_size_is_its_number_times_its_unit(number: int, unit: str, lower: bool, gap: bool) -> None:
    """In any case, with or without a space."""
    text = f"{number}{' ' * gap}{unit.lower() if lower else unit}"
    assert parse_size(text) == number * UNITS[unit]


@pytest.mark.parametrize(("text", "number"), [("1.5GB", 1_500_000_000), ("7", 7), (" 5 GB ", 5 * 10**9)])
def test_fractions_and_plain_bytes(text: str, number: int) -> None:
    """As huggingface_hub takes them."""
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "GB", "0", "0.1B", "-1GB", "5XB", "1e9", "5 GB GB", "٣GB "])
def test_what_is_no_size(text: str) -> None:
    """Nothing is guessed."""
    if text == "٣GB ":  # digits of another script are digits to Python
        assert parse_size(text) == 3 * 10**9
        return
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def tensor(name: str, dtype: str, elements: int) -> OutputTensor:
    size = nbytes(dtype, (elements,))
    assert size is not None
    return OutputTensor(name, dtype, (elements,), ByteRange("f", 0, size))


tensors = st.lists(
    st.builds(
        tensor, st.text(max_size=3), st.sampled_from(["BOOL", "U8", "BF16", "F32", "F64", "I64"]), st.integers(0, 9)
    ),
    max_size=12,
)


@given(tensors)
def test_every_tensor_starts_on_a_multiple_of_its_element(found: list[OutputTensor]) -> None:
    """Readers that map a file cannot use a float that starts between two."""
    position = 0
    for entry in widest_first(found):
        assert position % (BITS[entry.dtype] // 8) == 0
        position += entry.nbytes


@given(tensors, st.integers(1, 100))
def test_a_split_keeps_order_and_limit(found: list[OutputTensor], limit: int) -> None:
    """The shards, one after the other, are the tensors; each fits, or holds one tensor that does not."""
    named = [OutputTensor(str(place), t.dtype, t.shape, t.content) for place, t in enumerate(found)]
    shards = list(split_shards(named, limit))
    assert sorted((t.name for shard in shards for t in shard), key=int) == [t.name for t in named]
    for shard in shards:
        assert shard and (sum(t.nbytes for t in shard) <= limit or len(shard) == 1)
    small = [t.name for shard in shards for t in shard if t.nbytes <= limit]
    assert small == sorted(small, key=int)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=4))
def test_a_trimmed_storage_holds_its_views(places: list[tuple[int, int]]) -> None:
    """From before the first to the last used byte; each view stays on the border that it was on."""
    storage = Storage("0", ByteRange("f", 64, 64 + 80), crc=1)
    views = [
        TensorRecord(str(place), "U8", (size,), ByteRange("f", 64 + start, 64 + start + size), storage="0")
        for place, (start, size) in enumerate(places)
    ]
    found = trimmed(storage, views)
    first, last = min(v.range.start for v in views), max(v.range.end for v in views)
    assert found.range.end == last and 0 <= first - found.range.start < 16
    assert (found.range.start - 64) % 16 == 0
    assert found == OutputStorage(storage.range, 1) if found.range == storage.range else found.crc is None
