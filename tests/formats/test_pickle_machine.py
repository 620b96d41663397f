"""The one pickle interpreter: what its shortcuts give is what its opcodes give, and its limits hold."""

from __future__ import annotations

import pickle
import struct
import zipfile
from functools import cache
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from fixtures.torch_files import pickled, text
from tests.formats.test_torch_read import state_dicts
from tests.lazy import torch
from tests.patience import examples, prompt
from tests.refusals import failure_of
from tieconv.formats.torch import globals_, pickle_machine, pickle_stack
from tieconv.formats.torch.globals_ import ALLOWED, storage_reference
from tieconv.formats.torch.pickle_stack import (
    Dtype,
    Global,
    Machine,
    Pairs,
    PickleProblem,
    StorageRef,
    StoredTensor,
    allowance,
)


def outcome(data: bytes, *, shortcuts: bool) -> tuple[Any, ...]:
    """The value and its end, or the code of the refusal, with and without shortcuts."""

    def machine(*arguments: Any) -> Machine:
        return Machine(*arguments, shortcuts=shortcuts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(globals_, "FIRST", 0)
        if not shortcuts:
            patch.setattr(pickle_machine, "Machine", machine)
        try:
            return pickle_machine.run(data, 0, ALLOWED, storage_reference, lambda: 10_000_000)
        except PickleProblem as problem:
            return (problem.code,)
        except pickle_stack.Truncated:
            return ("truncated",)


def pickle_of(state: object) -> bytes:
    buffer = BytesIO()
    torch.save(state, buffer)
    return zipfile.ZipFile(buffer).read("archive/data.pkl")


def many(count: int = 60) -> dict[str, torch.Tensor]:
    """Enough tensors for memo places of four bytes, of several ranks, dtypes and owners of storages."""
    table = torch.zeros(300, 700, dtype=torch.uint8)
    state: dict[str, torch.Tensor] = {"tied.0": table, "tied.1": table, "turned": table.T, "row": table[7]}
    kinds = [torch.zeros(3), torch.zeros(()), torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(1, 2, 3, 4, 5)]
    for number in range(count):
        state[f"layer.{number}"] = kinds[number % 4].clone()
        state[f"view.{number}"] = state[f"layer.{number}"][:1] if number % 4 != 1 else table[number : 2 * number]
    return state


FLOAT, CLASS = Dtype("F32", 4), Global("torch.FloatStorage", value=Dtype("F32", 4))
STORAGE = StorageRef("0", FLOAT, 6)
VIEW = (STORAGE, 0, (2, 3), (3, 1))
MALFORMED: dict[str, tuple[Any, Any]] = {
    "torch.persistent": (storage_reference, [
        None, ["storage", CLASS, "0", "cpu", 6], ("storage", CLASS, "0", "cpu"), ("module", CLASS, "0", "cpu", 6),
        ("storage", CLASS, "0", "cpu", 6, None, None),
        ("storage", CLASS, "0", None, 6), ("storage", CLASS, "0", "cpu", -1), ("storage", CLASS, "0", "cpu", True),
    ]),
    "torch.storage-class": (storage_reference, [
        ("storage", kind, "0", "cpu", 6)
        for kind in ("torch.FloatStorage", Global("torch.FloatStorage"), CLASS._replace(name="torch.float"))
    ]),
    "torch.storage-key": (storage_reference, [
        ("storage", CLASS, key, "cpu", 6) for key in (0, "", "a/b", "\u0663", "0" * 65)
    ]),
    "torch.view-storage": (storage_reference, [("storage", CLASS, "0", "cpu", 6, ("1", 0, 6))]),
    "torch.tensor": (globals_.tensor, [(None, *VIEW[1:]), (*VIEW, 1)]),
    "torch.offset": (globals_.tensor, [(STORAGE, -1, *VIEW[2:]), (STORAGE, False, *VIEW[2:])]),
    "torch.shape": (globals_.tensor, [
        (STORAGE, 0, shape, (3, 1)) for shape in ([2, 3], (2, -3), (2, 3.0), (1,) * 65)
    ]),
    "torch.stride": (globals_.tensor, [(STORAGE, 0, (2, 3), (1,))]),
    "torch.lazy-bits": (globals_.tensor_v2, [(*VIEW, False, Pairs(), Pairs([("conj", True)]))]),
}  # fmt: skip


@pytest.mark.parametrize("code", MALFORMED)
def test_what_torch_does_not_write_is_refused(code: str) -> None:
    """Persistent ids and arguments of tensors, each with one fault; the largest that are right are read."""
    read, wrong = MALFORMED[code]
    for value in wrong:
        assert failure_of(read, PickleProblem, value).code == code, value


def test_what_torch_writes_is_read() -> None:
    """Beside the faults of `MALFORMED`: with and without the part of old views, any key, as many sides as allowed."""
    for key, end in (("0", ()), ("a1" * 32, (None,))):
        assert storage_reference(("storage", CLASS, key, "cpu", 6, *end)) == StorageRef(key, FLOAT, 6)
    for shape in ((), (2, 3), (1,) * 64):
        made = globals_.tensor_v2((STORAGE, 0, shape, shape, False, Pairs(), Pairs()))
        assert made == StoredTensor(STORAGE, FLOAT, 0, shape, shape)


@cache
def written() -> bytes:
    return pickle_of(many())


def test_shortcuts_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tensors of an ordinary file are read as a whole: the test below compares two ways, not one with itself."""
    taken: list[int] = []
    charge = Machine.charge

    def counted(self: Machine, opcodes: int) -> None:
        taken.append(opcodes)
        charge(self, opcodes)

    monkeypatch.setattr(Machine, "charge", counted)
    outcome(pickle_of({f"layer.{i}": torch.zeros(3, 4) for i in range(1000)}), shortcuts=True)
    assert sum(taken) > 900 * pickle_stack.SHORTCUT


def test_shortcuts_change_nothing() -> None:
    assert outcome(written(), shortcuts=True) == outcome(written(), shortcuts=False)
    value, end = outcome(written(), shortcuts=True)
    assert isinstance(value, Pairs) and len(value.items) == len(many()) and end == len(written())


@settings(max_examples=examples(60), deadline=None)
@given(state=state_dicts())
def test_shortcuts_change_nothing_of_any_state_dict(state: dict[str, torch.Tensor]) -> None:
    """Views, aliases and dtypes of every kind, behind enough names that the memo has places of four bytes."""
    data = pickle_of({f"first.{i}": torch.zeros(1) for i in range(40)} | state)
    assert outcome(data, shortcuts=True) == outcome(data, shortcuts=False)


@settings(max_examples=examples(400), deadline=None)
@given(offset=st.deferred(lambda: st.integers(len(written()) // 4, len(written()) - 1)), byte=st.integers(0, 255))
def test_shortcuts_change_nothing_of_a_damaged_file(offset: int, byte: int) -> None:
    """One reader must not see what another does not: a changed byte has the same consequences both ways."""
    data = written()[:offset] + bytes([byte]) + written()[offset + 1 :]
    assert outcome(data, shortcuts=True) == outcome(data, shortcuts=False)


@settings(max_examples=examples(60), deadline=None)
@given(end=st.deferred(lambda: st.integers(0, len(written()) - 1)))
def test_every_cut_is_truncated(end: int) -> None:
    assert outcome(written()[:end], shortcuts=True) == ("truncated",)


@pytest.mark.parametrize("back", range(1, 8))
def test_values_inside_of_a_call_are_there_when_they_are_recalled(back: int) -> None:
    """A shape, an argument tuple or the hooks of a tensor, which no pickler refers to again, but a pickle may."""
    call = pickle_of({f"layer.{i}": torch.zeros(3, 4) for i in range(60)})
    memo = call.rindex(b"r", 0, call.rindex(b"u.")) + 1
    memo_index = struct.unpack_from("<I", call, memo)[0]
    recalled = call[: call.rindex(b"u.")] + text("again") + b"j" + struct.pack("<I", memo_index + 1 - back) + b"u."
    value, _ = outcome(recalled, shortcuts=True)
    assert (value, len(recalled)) == outcome(recalled, shortcuts=False)
    assert value.items[-1][0] == "again"
    assert back > 1 or value.items[-1][1] == value.items[-2][1]


@settings(max_examples=examples(100), deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    protocol=st.integers(3, 5),  # those before have no bytes
)
def test_plain_data_is_what_pickle_makes_of_it(value: object, protocol: int) -> None:
    """Any data; a dictionary is its pairs."""

    def plain(value: object) -> object:
        if isinstance(value, Pairs):
            return {key: plain(inner) for key, inner in value.items}
        if isinstance(value, list | tuple):
            return type(value)(map(plain, value))
        return value

    data = pickle.dumps(value, protocol)
    unpickled, end = outcome(data, shortcuts=True)
    assert (plain(unpickled), end) == (value, len(data))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("unit", "code"),
    [(b"N", "pickle.stack"), (b"N0", "pickle.opcodes"), (b"]0", "pickle.opcodes"), (b"N\x940", "pickle.opcodes"),
     (b"(1", "pickle.opcodes"), (b"Nr\x01\0\0\x090", "pickle.opcodes"), (b"}(1", "pickle.stack")],
    ids=repr,
)  # fmt: skip
def test_idle_opcodes_are_refused_within_a_second(unit: bytes, code: str) -> None:
    """Twenty megabytes that do nothing: the file is as large as its pickle and holds no storage."""
    data = pickled(b"N" + unit * (20_000_000 // len(unit)))
    most = allowance(len(data), 0)
    with prompt(1), pytest.raises(PickleProblem) as refusal:
        pickle_machine.run(data, 0, ALLOWED, storage_reference, lambda: most)
    assert refusal.value.code == code


def test_the_memo_of_scattered_places_is_bounded() -> None:
    places = range(1000, 1002 + 2 * pickle_stack.MAX_SCATTERED, 2)
    body = b"N" + b"".join(b"r" + struct.pack("<I", index) for index in places)
    assert outcome(pickled(body), shortcuts=True) == ("pickle.memo",)
    assert outcome(pickled(body[:-5]), shortcuts=True) == (None, len(body) - 5 + 3)


def test_memo_places_from_one() -> None:
    """Pickles of Python 2 number the memo from 1; place 0 is then unknown."""
    assert outcome(pickled(b"Nq\x010h\x01"), shortcuts=True)[0] is None
    assert outcome(pickled(b"Nq\x010h\x00"), shortcuts=True) == ("pickle.malformed",)
    assert outcome(pickled(b"Nq\x010K\x05\x940h\x01", 4), shortcuts=True) == (5, 13)


def test_an_honest_pickle_is_far_from_the_limit() -> None:
    """A tensor of `torch.save` takes half of the opcodes that its storage allows for."""
    import pickletools

    number = sum(1 for _ in pickletools.genops(pickle_of({f"layer.{i}": torch.zeros(1) for i in range(2000)})))
    assert number < 2000 * pickle_stack.OPCODES_EACH // 1.5


def test_a_line_is_a_float_where_pickle_says_so() -> None:
    """The opcode FLOAT: `float()` of Python takes more than pickle does."""
    for line in b"1e999,-1e999,inf,-nan, 1,1_0,1e5 ,1.,.5,2.5e-3,+1,,.".split(b","):
        data = b"F" + line + b"\n."
        try:
            expected = repr(pickle.loads(data))
        except (ValueError, OverflowError, pickle.UnpicklingError):
            expected = "refused"
        read = outcome(data, shortcuts=False)
        assert ("refused" if read == ("pickle.malformed",) else repr(read[0])) == expected, line
