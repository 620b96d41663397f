"""Duplicates are found and proved, each byte read once, whatever the order and the names."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given, settings, strategies as st

from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.tie_group import Duplicate
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.duplicates import find_duplicates
from tieconv.inspection.view_reader import BLOCK, SAMPLE

from .stored import Memory, bits_of, normal, values_of


def identical(duplicates: tuple[Duplicate, ...]) -> set[tuple[str, ...]]:
    return {duplicate.tensors for duplicate in duplicates if duplicate.kind is State.IDENTICAL}


def random(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0x3000, 0x3C00, shape, dtype="<u2")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["U8", "I8", "BF16"]), st.binary(max_size=3)), max_size=12))
def test_classes_are_those_of_type_shape_and_bytes(contents: list[tuple[str, bytes]]) -> None:
    memory = Memory()
    expected = defaultdict(list)
    tensors = []
    for number, (dtype, data) in enumerate(contents):
        data = data * 2
        shape = (len(data) // (2 if dtype == "BF16" else 1),)
        tensors.append(memory.store(f"t{number:02}", dtype, data, shape))
        expected[dtype, data].append(f"t{number:02}")
    duplicates = find_duplicates(memory, tensors)
    assert identical(duplicates) == {tuple(names) for (_, data), names in expected.items() if data and len(names) > 1}


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.data())
def test_large_tensors_that_differ_outside_the_samples(versions: list[int], data: st.DataObject) -> None:
    size = 2 * BLOCK + 11
    places = [data.draw(st.integers(SAMPLE, size // 2 - SAMPLE)) for _ in range(4)]
    memory = Memory()
    blobs = []
    for version in versions:
        blob = bytearray(size)
        for step in range(version):
            blob[places[step]] = 1 + step
        blobs.append(bytes(blob))
    tensors = [memory.store(f"t{n}", "U8", blob, (size,)) for n, blob in enumerate(blobs)]
    expected = defaultdict(list)
    for tensor, content in zip(tensors, blobs, strict=True):
        expected[content].append(tensor.name)
    groups = {tuple(names) for names in expected.values() if len(names) > 1}
    assert identical(find_duplicates(memory, data.draw(st.permutations(tensors)))) == groups


def test_agreeing_bytes_are_read_once_besides_the_samples() -> None:
    memory = Memory()
    size = 4 * BLOCK
    same = [memory.store(f"same{n}", "U8", bytes(size), (size,)) for n in range(3)]
    changed_bytes = bytearray(size)
    changed_bytes[0] = 1
    early = memory.store("early", "U8", bytes(changed_bytes), (size,))
    changed_bytes = bytearray(size)
    changed_bytes[BLOCK + 5] = 1
    late = memory.store("late", "U8", bytes(changed_bytes), (size,))
    alone = memory.store("alone", "U8", bytes(size + 1), (size + 1,))
    reader = memory.counted()
    (duplicate,) = find_duplicates(reader, [*same, early, late, alone])
    assert duplicate == Duplicate(State.IDENTICAL, ("same0", "same1", "same2"), 2 * size)
    assert reader.bytes_read == 3 * size + 2 * BLOCK + 4 * 3 * SAMPLE + SAMPLE


def test_many_that_differ_only_between_the_samples() -> None:
    memory = Memory()
    size = 8 * SAMPLE
    tensors = []
    for number in range(300):
        blob = bytearray(size)
        blob[SAMPLE : SAMPLE + 2] = (number // 2).to_bytes(2, "little")
        tensors.append(memory.store(f"t{number:03}", "U8", bytes(blob), (size,)))
    duplicates = find_duplicates(memory, tensors)
    assert identical(duplicates) == {(f"t{n:03}", f"t{n + 1:03}") for n in range(0, 300, 2)}


def test_transposed_pairs_among_one_of_each_class() -> None:
    memory = Memory()
    bits, square = random(1, (40, 30)), random(2, (20, 20))
    tensors = [
        memory.store("a", "BF16", bits),
        memory.store("b", "BF16", bits),
        memory.store("c", "BF16", bits.T),
        memory.store("d", "F16", bits.T),
        memory.store("e", "BF16", square),
        memory.store("f", "BF16", square.T),
        memory.store("g", "BF16", random(3, (20, 20))),
        memory.store("h", "F4", bytes(10), (4, 5)),
        memory.store("i", "F4", bytes(10), (5, 4)),
    ]
    assert find_duplicates(memory, tensors) == (
        Duplicate(State.IDENTICAL, ("a", "b"), bits.nbytes),
        Duplicate(State.TRANSPOSED, ("a", "c"), bits.nbytes),
        Duplicate(State.TRANSPOSED, ("e", "f"), square.nbytes),
    )


def test_nearly_transposed_is_not() -> None:
    memory = Memory()
    bits = random(1, (50, 60))
    turned = bits.T.copy()
    turned[33, 17] ^= 1
    assert not find_duplicates(memory, [memory.store("a", "I16", bits), memory.store("b", "I16", turned)])


def test_casts_waste_the_narrow_side_once() -> None:
    memory = Memory()
    wide = bits_of(normal(0, (6, 40)), "F32")
    half, brain = (bits_of(values_of(wide, "F32"), dtype) for dtype in ("F16", "BF16"))
    changed = brain.copy()
    changed[3, 3] ^= 1
    tensors = [
        memory.store("brain", "BF16", brain),
        memory.store("changed", "BF16", changed),
        memory.store("half", "F16", half),
        memory.store("other", "F32", wide[::-1]),
        memory.store("wide", "F32", wide),
    ]
    assert find_duplicates(memory, tensors) == (
        Duplicate(State.CAST, ("brain", "wide"), brain.nbytes),
        Duplicate(State.CAST, ("half", "wide"), half.nbytes),
    )


def test_a_cast_of_a_cast_is_not_reported_again() -> None:
    memory = Memory()
    values = np.arange(64.0).reshape(8, 8)
    tensors = [memory.values(dtype, dtype, values) for dtype in ("BF16", "F16", "F32", "F64")]
    assert find_duplicates(memory, tensors) == (
        Duplicate(State.CAST, ("BF16", "F64"), 128),
        Duplicate(State.CAST, ("F16", "F64"), 128),
        Duplicate(State.CAST, ("F32", "F64"), 256),
    )


def test_tiny_and_empty_tensors() -> None:
    memory = Memory()
    tensors = [memory.store(name, "BF16", np.ones(4, "<u2")) for name in "ab"]
    empty = [memory.store(name, "BF16", np.ones((0, 3), "<u2")) for name in "cd"]
    assert identical(find_duplicates(memory, [*tensors, *empty])) == {("a", "b")}
    assert not find_duplicates(memory, [])


def test_known_groups_are_not_reported_again() -> None:
    memory = Memory()
    bits = random(1, (8, 8))
    embed, head, third = (memory.store(name, "BF16", bits) for name in ("embed", "head", "third"))
    turned = memory.store("turned", "BF16", bits.T)
    known = [frozenset({"embed", "head", "turned"})]
    assert not find_duplicates(memory, [embed, head, turned], known=known)
    assert find_duplicates(memory, [embed, head, third, turned], known=known) == (
        Duplicate(State.IDENTICAL, ("embed", "head", "third"), bits.nbytes),
    )
    linked = [frozenset({"embed", "head"}), frozenset({"head", "third"})]
    assert not find_duplicates(memory, [embed, head, third], known=linked)


def test_names_of_one_range_are_aliases() -> None:
    memory = Memory()
    first = memory.store("a", "BF16", random(1, (8, 8)))
    second = replace(first, name="b")
    assert find_duplicates(memory, [first, second]) == (Duplicate(State.ALIASED, ("a", "b"), 0),)
    copy = memory.store("c", "BF16", random(1, (8, 8)))
    assert find_duplicates(memory, [first, second, copy]) == (
        Duplicate(State.IDENTICAL, ("a", "b", "c"), first.nbytes),
    )


def test_order_does_not_depend_on_the_order_given() -> None:
    memory = Memory()
    tensors: list[TensorRecord] = [
        memory.store(f"{name}{copy}", "BF16", random(seed, (5, 9)))
        for copy in (1, 0)
        for seed, name in enumerate("zmc")
    ]
    duplicates = find_duplicates(memory, tensors)
    assert [duplicate.tensors for duplicate in duplicates] == [("c0", "c1"), ("m0", "m1"), ("z0", "z1")]
    assert find_duplicates(memory, tensors[::-1]) == duplicates
