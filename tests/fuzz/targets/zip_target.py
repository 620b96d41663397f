"""Torch's zip files: the pickle inside, the records beside it, and headers that two readers read in two ways."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass

from fixtures.torch_files import number, pickled, sizes, state, storage, tensor, text
from tests.fuzz.case import Case
from tests.fuzz.models import config, numbers
from tests.fuzz.mutate.edits import NAMES, edited, size
from tests.fuzz.mutate.pickle_ops import changed

NAME = "pytorch_model.bin"


@dataclass
class Entry:
    """One record of an archive, with what each header says of it."""

    name: str
    data: bytes
    central: dict[str, int]
    local: dict[str, int]
    extra: bytes = b""


def body(rng: random.Random) -> bytes:
    """Return the pickle of a state dict of two to four tensors."""
    shared = rng.random() < 0.4
    items = [
        text("model.embed_tokens.weight") + tensor((8, 4), (4, 1), pid=storage("0", 32)),
        text("lm_head.weight") + tensor((8, 4), (4, 1), pid=storage("0" if shared else "1", 32)),
        text("model.norm.weight") + tensor((4,), (1,), rng.choice((0, 4, 28)), pid=storage("0", 32)),
    ]
    if rng.random() < 0.3:
        items.append(text("turned") + tensor((4, 8), (1, 4), pid=storage("0", 32)))
    if rng.random() < 0.1:
        items.append(text("step") + number(3) + text("sizes") + sizes((1, 2)))
    return pickled(state(*items))


def _entry(name: str, data: bytes) -> Entry:
    both = {"flags": 0, "method": 0, "crc": zlib.crc32(data), "packed": len(data), "size": len(data)}
    return Entry(name, data, dict(both), dict(both))


def archive(entries: list[Entry], rng: random.Random | None = None) -> bytes:
    """Return the archive of these records, by what their headers say."""
    out, directory = b"", b""
    for one in entries:
        name = one.name.encode("utf-8", "surrogateescape")[:65535]
        offset = one.central.get("offset", len(out))
        low, high = _header(one.local), _header(one.central)
        out += b"PK\x03\x04" + struct.pack("<HHHHH", 20, *low[:2], 0, 33) + low[2] + _sizes(name, one.extra) + name
        out += one.extra + one.data
        directory += b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, *high[:2], 0, 33) + high[2]
        directory += _sizes(name, b"") + struct.pack("<HHHII", 0, 0, 0, 0, offset & 0xFFFFFFFF) + name
    count, start = len(entries), len(out)
    if rng is not None and rng.random() < 0.08:
        count, start = rng.choice(((count + 1, start), (count, start + 1), (0, start), (count, 0)))
    end = struct.pack("<HHHHIIH", 0, 0, count & 0xFFFF, count & 0xFFFF, len(directory), start & 0xFFFFFFFF, 0)
    return out + directory + b"PK\x05\x06" + end


def _header(said: dict[str, int]) -> tuple[int, int, bytes]:
    three = struct.pack("<III", *(said[key] & 0xFFFFFFFF for key in ("crc", "packed", "size")))
    return said["flags"] & 0xFFFF, said["method"] & 0xFFFF, three


def _sizes(name: bytes, extra: bytes) -> bytes:
    return struct.pack("<HH", len(name), len(extra))


def records(rng: random.Random, pickle_bytes: bytes) -> list[Entry]:
    """Return the records that `torch.save` writes for this pickle."""
    first = numbers(32, 1)
    second = first if rng.random() < 0.5 else numbers(32, 4)
    named = (
        ("data.pkl", pickle_bytes),
        *([(".format_version", b"1"), (".storage_alignment", b"64")] if rng.random() < 0.4 else ()),
        ("byteorder", b"little"),
        ("data/0", first),
        ("data/1", second),
        ("version", b"3\n"),
        *([(".data/serialization_id", b"0123456789")] if rng.random() < 0.2 else ()),
    )
    return [_entry(f"archive/{name}", data) for name, data in named]


def make(rng: random.Random) -> Case:
    """Return a model whose weights are a damaged archive."""
    pickle_bytes = body(rng)
    draw = rng.random()
    if draw < 0.6:
        pickle_bytes = changed(rng, pickle_bytes, rng.choice((1, 1, 1, 3)))
    entries = records(rng, pickle_bytes)
    if draw > 0.5:
        for _ in range(rng.choice((1, 1, 2))):
            _spoil(rng, entries)
    data = archive(entries, rng)
    if rng.random() < 0.12:
        data = edited(rng, data, max(0, len(data) - 400) if rng.random() < 0.5 else 0, most=2)
    files = {NAME: data, **({"config.json": config()} if rng.random() < 0.5 else {})}
    return Case("zip", files, rng.choice((".", NAME)), "torch", (NAME,))


def _spoil(rng: random.Random, entries: list[Entry]) -> None:
    if not entries:
        return
    one = rng.choice(entries)
    draw = rng.randrange(10)
    if draw == 0:
        entries.remove(one)
    elif draw == 1:
        entries.insert(rng.randint(0, len(entries)), _entry(one.name, rng.choice((one.data, b"", numbers(32, 9)))))
    elif draw == 2:
        rng.shuffle(entries)
    elif draw == 3:
        one.name = rng.choice((*NAMES, "archive/data/2", "archive/x.pkl", "other/data.pkl", "archive/code/x.py"))
    elif draw == 4:
        header = rng.choice((one.central, one.local))
        header[rng.choice(("flags", "method", "crc", "packed", "size"))] = size(rng, len(one.data))
    elif draw == 5:
        key = rng.choice(("flags", "method", "crc", "packed", "size"))
        one.central[key] = one.local[key] = rng.choice((size(rng, len(one.data)), 1, 8, 0x808))
    elif draw == 6:
        one.data = edited(rng, one.data, most=1)
        if rng.random() < 0.7:
            _honest(one)
    elif draw == 7:
        one.data = zlib.compress(one.data)[2:-4]
        one.central.update(method=8, packed=len(one.data))
        one.local.update(method=8, packed=len(one.data))
    elif draw == 8:
        one.extra = rng.choice(
            (b"FB\x04\0ZZZZ", struct.pack("<HHQQ", 1, 16, len(one.data), len(one.data)), rng.randbytes(7))
        )
    else:
        contents = {
            "version": (b"2", b"4", b"", b"10\n", b" 3", b"3\0", b"+3", b"-3", b"x"),
            "byteorder": (b"big", b"", b"x", b"little\n", b" little", b"little\0"),
            ".storage_alignment": (b"", b"x", b"64\0", b"64\n", b"6_4", b"0", b"-1", b"0x40", b"\xff", b"9" * 40),
            ".format_version": (b"", b"x", b"\xff"),
            "serialization_id": (b"", b"x", b"\xff"),
        }
        one.data = rng.choice(contents.get(one.name.rpartition("/")[2], (b"", one.data * 2, one.data[:-1])))
        _honest(one)


def _honest(one: Entry) -> None:
    for header in (one.central, one.local):
        header.update(crc=zlib.crc32(one.data), packed=len(one.data), size=len(one.data))
