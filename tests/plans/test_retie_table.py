"""`plan_retie` on each layout, and the sizes and places of what is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tieconv
from tests.checks.fixtures.model import (
    BART,
    BERT,
    HEAD,
    LLAMA,
    Config,
    Tensors,
    bert,
    flagged,
    llama,
    matrix,
    save,
    vector,
)
from tests.checks.fixtures.tie import bart
from tieconv.checkpoint.weight_file import BITS, ByteRange, Storage, TensorRecord, nbytes
from tieconv.checkpoint.write_plan import OutputStorage, OutputTensor
from tieconv.errors import RefusedError
from tieconv.plans.verbs.convert import split_shards, widest_first
from tieconv.plans.verbs.dedup import trimmed
from tieconv.plans.verbs.retie import Survivor
from tieconv.text import parse_size

TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)
FORCE = {"force": True}
CASES: dict[str, tuple[Config, Tensors, dict[str, object]]] = {
    "untied copy": (UNTIED, llama(head=matrix()), {}),
    "tied copy": (TIED, llama(head=matrix()), {}),
    "already tied": (TIED, llama(), {}),
    "head alone": (TIED, {HEAD: matrix(), "model.norm.weight": vector(4)}, {}),
    "placeholder": (TIED, llama(head=np.zeros((0, 4), "<f4")), {}),
    "other": (UNTIED, llama(head=matrix(seed=1)), {}),
    "other, survivor without force": (UNTIED, llama(head=matrix(seed=1)), {"survivor": Survivor.HEAD}),
    "other, force without survivor": (UNTIED, llama(head=matrix(seed=1)), FORCE),
    "other, keep the embedding": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.EMBED}),
    "other, keep the head": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.HEAD}),
    "other, keep the mean": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.MEAN}),
    "transposed": (TIED, llama(head=matrix().T), {}),
    "transposed, by force": (TIED, llama(head=matrix().T), {**FORCE, "survivor": Survivor.HEAD}),
    "longer": (TIED, llama(head=matrix(9)), {}),
    "longer, by force": (TIED, llama(head=matrix(9)), {**FORCE, "survivor": Survivor.EMBED}),
    "scaled": (TIED, llama(head=matrix() * 2), {}),
    "biases differ": (flagged(BERT, True), bert(outer=vector(), inner=vector(seed=1)), {}),
    "biases differ, by force": (
        flagged(BERT, True),
        bert(outer=vector(), inner=vector(seed=1)),
        {**FORCE, "survivor": Survivor.EMBED},
    ),
    "BART, every copy": (flagged(BART, False), {**bart("encoder", "decoder"), HEAD: matrix()}, {}),
    "BART, one copy": (flagged(BART, False), {**bart("encoder"), HEAD: matrix()}, {}),
    "BART, head of its own": (flagged(BART, False), bart("encoder", "decoder"), {}),
    "BART, keep the head": (flagged(BART, False), bart("encoder", "decoder"), {**FORCE, "survivor": Survivor.HEAD}),
    "BART, halves alone": (
        flagged(BART, True),
        {key: one for key, one in bart("encoder", "decoder").items() if "coder" in key},
        {},
    ),
}
EXPECTED = json.loads(Path(__file__).with_name("retie.json").read_text(encoding="utf-8"))
"""The code of each refusal, or the operations and notes of each plan."""


def answer(path: Path, options: dict[str, object]) -> list[str]:
    try:
        plan = tieconv.plan_retie(path, **options).plan
    except RefusedError as error:
        assert error.hint
        return [error.code]
    return [*map(str, plan.operations), *plan.notes]


def test_every_entry_has_a_case() -> None:
    """No answer is left of a case that is gone."""
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_answer(case: str, tmp_path: Path) -> None:
    """The exact code, or the exact operations in their order and every note."""
    config, tensors, options = CASES[case]
    assert answer(save(tmp_path / "model", config, tensors), options) == EXPECTED[case]


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
