"""safetensors: the contract of formats, and its own reader as oracle."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from fixtures.hostile import entry, file_of
from tests.formats.contract import FormatContract, Malformed, Stored
from tests.formats.oracle import WRITER_NAMES, ours, theirs, view, written
from tests.patience import examples
from tests.refusals import failure_of
from tieconv.checkpoint.weight_file import BITS
from tieconv.errors import UnreadableError
from tieconv.formats import SAFETENSORS
from tieconv.formats.safetensors import HEADER_LIMIT, encode_header, unknown_dtypes

SINGLE = "model.safetensors"


def stored(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Stored:
    elements = 1
    for side in shape:
        elements *= side
    return Stored(dtype, shape, random.Random(seed).randbytes(elements * BITS[dtype] // 8))


def encoded(tensors: Mapping[str, Stored], metadata: dict[str, str] | None = None) -> bytes:
    """The file that our header and the tensors' bytes make."""
    rows = [(name, each.dtype, each.shape, len(each.data)) for name, each in tensors.items()]
    return encode_header(rows, metadata) + b"".join(each.data for each in tensors.values())


class _Safetensors(FormatContract):
    format = SAFETENSORS

    def examples(self) -> dict[str, Stored]:
        examples = {f"t.{dtype}": stored(dtype, (2, 4), i) for i, dtype in enumerate(BITS)}
        examples |= {"scalar": stored("F32", ()), "empty": stored("F32", (0,)), "rows": stored("BF16", (0, 5))}
        return examples | {"ü\n": stored("U8", (3,)), "": stored("U8", (1, 1, 1))}

    def put(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)


class TestSafetensors(_Safetensors):
    """One file."""

    header_bytes = 1000

    def store(self, home: Path, tensors: Mapping[str, Stored]) -> None:
        (home / SINGLE).write_bytes(encoded(tensors, {"format": "pt"}))

    def weight_file(self) -> str:
        return SINGLE

    def malformed(self) -> Sequence[Malformed]:
        good = encoded(self.examples())
        contents = {
            "empty": b"", "too-small": good[:8], "header-too-large": b"\xff" * 8 + good[8:], "truncated": good[:-1],
            "trailing": good + b"x", "header-start": good[:8] + b" " + good[9:], "truncated-header": good[:20],
        }  # fmt: skip
        return [
            Malformed(code, lambda home, content=content: self.put(home / SINGLE, content), f"safetensors.{code}")
            for code, content in contents.items()
        ]


class TestShardedSafetensors(_Safetensors):
    """Two shards and an index."""

    header_bytes = 2000
    parts = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    def store(self, home: Path, tensors: Mapping[str, Stored]) -> None:
        weight_map = {name: self.parts[i % 2] for i, name in enumerate(tensors)}
        for part in self.parts:
            mine = {name: each for name, each in tensors.items() if weight_map[name] == part}
            (home / part).write_bytes(encoded(mine))
        total = sum(len(each.data) for each in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (home / f"{SINGLE}.index.json").write_text(json.dumps(index))

    def weight_file(self) -> str:
        return self.parts[0]

    def malformed(self) -> Sequence[Malformed]:
        index = f"{SINGLE}.index.json"
        return [
            Malformed("absent", lambda home: os.remove(home / self.parts[1]), "index.absent-shard"),
            Malformed("cut", lambda home: os.truncate(home / self.parts[1], 12), "safetensors.truncated-header"),
            Malformed("no-map", lambda home: self.put(home / index, b"{}"), "index.no-map"),
            Malformed("escape", lambda home: self.put(home / index, b'{"weight_map":{"a":"../b"}}'), "index.escape"),
            Malformed("not-json", lambda home: self.put(home / index, b"x"), "json.malformed"),
            Malformed("other", lambda home: self.put(home / self.parts[0], b"GGUF" + bytes(40)), "safetensors.gguf"),
        ]


# -- the oracle ------------------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
sides = st.integers(0, 4)


@st.composite
def tensors(draw: st.DrawFn, dtypes: Sequence[str] = tuple(BITS)) -> dict[str, Stored]:
    drawn = {}
    for name in draw(st.lists(names, max_size=5, unique=True)):
        dtype = draw(st.sampled_from(dtypes))
        shape = tuple(draw(st.lists(sides, max_size=4)))
        if BITS[dtype] % 8:
            shape = (*shape, 4 * draw(sides))  # whole bytes for four and for six bits
        drawn[name] = stored(dtype, shape, draw(st.integers(0, 1000)))
    return drawn


metadata = st.none() | st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=3)


def test_the_oracle_knows_our_dtypes() -> None:
    """Every dtype of the table is one that safetensors reads, with the same width."""
    for dtype, bits in BITS.items():
        assert theirs(file_of({"a": entry(dtype, [8], [0, bits])}, bytes(bits))) is not None, dtype
    assert set(BITS) - set(WRITER_NAMES) == {"F6_E2M3", "F6_E3M2"}


@given(tensors(tuple(WRITER_NAMES)), metadata)
@settings(max_examples=examples(150), deadline=None)
def test_what_safetensors_writes_we_read(model: dict[str, Stored], extra: dict[str, str] | None) -> None:
    # safetensors 0.8 writes broken JSON for no tensor and an empty map: `{},"__metadata__":{}}`.
    assume(model or extra != {})
    content = written(model, extra)
    file = ours(content)
    assert view(file, content) == {name: (each.dtype, each.shape, each.data) for name, each in model.items()}
    assert file.metadata == extra


@given(tensors(), metadata)
@settings(max_examples=examples(150), deadline=None)
def test_what_we_write_safetensors_reads(model: dict[str, Stored], extra: dict[str, str] | None) -> None:
    """And we read it ourselves, in the order that was given."""
    content = encoded(model, extra)
    expected = {name: (each.dtype, each.shape, each.data) for name, each in model.items()}
    assert theirs(content) == view(ours(content), content) == expected
    assert ours(content).metadata == extra
    assert ours(content).data_start % 8 == 0


@given(tensors(), st.integers(0, 4095))
@settings(max_examples=examples(60), deadline=None)
def test_padding_makes_offsets_congruent(model: dict[str, Stored], wanted: int) -> None:
    """`congruent` is told where the data would start and answers how far to move it."""
    asked: list[int] = []

    def congruent(start: int) -> int:
        asked.append(start)
        return (wanted - start) % 4096

    rows = [(name, each.dtype, each.shape, len(each.data)) for name, each in model.items()]
    header = encode_header(rows, None, congruent=congruent)
    content = header + b"".join(each.data for each in model.values())
    assert len(header) % 4096 == wanted
    assert [len(encode_header(rows, None))] == asked
    assert theirs(content) == view(ours(content), content)


@pytest.mark.parametrize("name", ["__metadata__", "twice"])
def test_names_that_cannot_be_written(name: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        encode_header([("twice", "U8", (1,), 1), (name, "U8", (1,), 1)], None)
    assert caught.value.code == "safetensors.name"


def test_a_header_that_no_reader_takes_is_not_written() -> None:
    with pytest.raises(UnreadableError) as caught:
        encode_header([("a", "U8", (1,), 1)], {"x": "y" * HEADER_LIMIT})
    assert caught.value.code == "safetensors.header-too-large"


STRICTER = {
    "safetensors.header-start": "white space before the brace",
    "safetensors.entry": "a further field in an entry, or an entry written as a list",
    "safetensors.shape": "more than 64 dimensions",
    "json.refused": "a repeated key, or something odd in a field that safetensors skips",
}
"""Every reason for which we refuse what safetensors takes. Nothing goes the other way, but for unknown dtypes."""


def agree(content: bytes) -> None:
    """Either both readers see the same, or we are the stricter one for a listed reason."""
    judged = theirs(content)
    try:
        file = ours(content)
    except UnreadableError as error:
        assert judged is None or error.code in STRICTER, (error.message, content[8:])
        assert error.hint and len(error.message) < 4096 and error.message.isprintable()
        return
    if any(record.dtype not in BITS for record in file.tensors):
        assert judged is None and unknown_dtypes(file)
    else:
        assert judged == view(file, content), content[8:]


def changed_bytes(content: bytes, edits: list[tuple[int, int, int]]) -> bytes:
    """``content`` with bytes replaced, put in or taken out of its header, whose length follows."""
    header, data = bytearray(content[8:-8]), content[-8:]
    for offset, kind, value in edits:
        at = offset % (len(header) + 1)
        if kind == 0:
            header[at : at + 1] = bytes([value])
        elif kind == 1:
            header[at:at] = bytes([value])
        else:
            del header[at : at + 1]
    return file_of(bytes(header), data)


GOOD = file_of({"__metadata__": {"a": "b"}, "x": entry(shape=[2, 2]), "y": entry("F16", [2], [4, 8])}, bytes(8))
one_edit = st.tuples(
    st.integers(0, 500), st.integers(0, 2), st.sampled_from(list(b'"{}[],:0123456789eE+-. \n\\ux\x00\x7f\xc3\xff'))
)


@given(st.lists(one_edit, min_size=1, max_size=3))
@settings(max_examples=examples(1500), deadline=None)
def test_changed_bytes(edits: list[tuple[int, int, int]]) -> None:
    agree(changed_bytes(GOOD, edits))


@given(st.binary(max_size=64) | st.binary(max_size=40).map(lambda data: file_of(b"{" + data)))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes(content: bytes) -> None:
    agree(content)


numbers = st.sampled_from(
    ["0", "1", "4", "8", "-0", "-1", "4.0", "4e0", "04", "1e400", str(2**63),
     str(2**64 - 1), str(2**64), "null", "true", '"4"', "[]", "NaN"]
)  # fmt: skip
shapes = st.lists(numbers, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
fields = st.one_of(
    st.sampled_from(["U8", "F16", "F4", "F6_E2M3", "C64", "u8", ""]).map(lambda dtype: f'"dtype":"{dtype}"'),
    shapes.map(lambda text: f'"shape":{text}'),
    shapes.map(lambda text: f'"data_offsets":{text}'),
    numbers.map(lambda text: f'"extra":{text}'),
)
entries = st.one_of(
    st.lists(fields, max_size=4).map(lambda parts: "{" + ",".join(parts) + "}"),
    st.tuples(shapes, numbers, numbers).map(
        lambda p: f'{{"dtype":"U8","shape":{p[0]},"data_offsets":[{p[1]},{p[2]}]}}'
    ),
    st.just('["U8",[4],[0,4]]'),
    numbers,
)
keys = st.sampled_from(["a", "\\u0061", "b", "\\ud83d\\ude00", "\\ud83d", "\\u0000", "é", "__metadata__"])
headers = st.lists(st.tuples(keys, entries), max_size=3).map(
    lambda pairs: "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"
)


@given(headers, st.integers(0, 12))
@example('{"a":{"dtype":"U8","shape":[4],"data_offsets":[-0,4]}}', 4)
@example('{"a":{"dtype":"U8","shape":[18446744073709551615,18446744073709551615,0],"data_offsets":[0,0]}}', 0)
@example('{"a":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]}}', 0)
@example('{"__metadata__":null}', 0)
@settings(max_examples=examples(1500), deadline=None)
def test_any_header(header: str, size: int) -> None:
    agree(file_of(header, bytes(size)))


def test_where_we_are_stricter() -> None:
    """Each listed reason is real: safetensors takes it, we do not."""
    good, zeros = '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}', bytes(4)
    contents = {
        "leading space": ("safetensors.header-start", file_of(f' {{"a":{good}}}', zeros)),
        "repeated tensor": ("json.refused", file_of(f'{{"a":{good},"a":{good}}}', zeros)),
        "repeated tensor, escaped": ("json.refused", file_of(f'{{"a":{good},"\\u0061":{good}}}', zeros)),
        "repeated metadata key": ("json.refused", file_of('{"__metadata__":{"a":"1","a":"2"}}')),
        "further field": ("safetensors.entry", file_of(f'{{"a":{good[:-1]},"b":1}}}}', zeros)),
        "number of 30 digits": ("json.refused", file_of(f'{{"a":{good[:-1]},"b":{10**29}}}}}', zeros)),
        "nested 100 deep": ("json.refused", file_of(f'{{"a":{good[:-1]},"b":{"[" * 100}{"]" * 100}}}}}', zeros)),
        "entry as a list": ("safetensors.entry", file_of('{"a":["U8",[4],[0,4]]}', zeros)),
        "65 dimensions": ("safetensors.shape", file_of({"a": entry(shape=[1] * 65, offsets=[0, 1])}, bytes(1))),
    }
    for name, (code, content) in contents.items():
        assert theirs(content) is not None, name
        assert failure_of(ours, UnreadableError, content).code == code, name
    assert {code for code, _ in contents.values()} == set(STRICTER)


def test_where_we_are_looser() -> None:
    """Only for a dtype that is not known: its bytes are carried, never interpreted, and the refusal is reported."""
    for dtype in ("F3", "f32", "float32"):
        content = file_of({"a": entry(dtype)}, bytes(4))
        assert theirs(content) is None
        assert ours(content).tensors[0].dtype == dtype
        (caution,) = unknown_dtypes(ours(content))
        assert caution.message == f"safetensors refuses x.safetensors: it does not know the dtype {dtype} of a"


def test_payloads_are_carried() -> None:
    """NaN payloads, negative zeros and codes that are no number keep every bit."""
    for dtype, bits in BITS.items():
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            content = encoded({"a": Stored(dtype, (8,), bytes([byte]) * bits)})
            assert view(ours(content), content) == theirs(content)
