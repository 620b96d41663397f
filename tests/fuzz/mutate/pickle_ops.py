"""Damage to pickles, opcode by opcode: what Python's own `pickletools` reads is cut, copied, swapped and refilled."""

from __future__ import annotations

import pickletools
import random
import struct

from fixtures.torch_files import call, name, number, sizes, storage, tensor, text
from tests.fuzz.mutate.edits import NAMES, NUMBERS, edited

ODD: tuple[bytes, ...] = (
    b"N", b"\x88", b"\x89", b"}", b"]", b")", b"(", b"0", b"1", b"2", b"t", b"l", b"d", b"s", b"u", b"a", b"e", b"b",
    b"R", b"Q", b"\x81", b"\x85", b"\x86", b"\x87", b"\x93", b"\x94", b"\x8f", b"\x90", b"\x91", b".", b"\x95",
    b"\x92", b"\x97", b"\x98", b"i__main__\nX\n", b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_parameter\n",
    b"cbuiltins\neval\n", b"ctorch\nFloatStorage\n", b"ctorch\nSize\n", b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"c__builtin__\nset\n", b"ctorch\nBFloat16Storage\n", b"ctorch\nfloat8_e4m3fn\n", b"ctorch\ndevice\n",
    b"cnumpy.core.multiarray\nscalar\n", b"c_codecs\nencode\n", b"ctorch._utils\n_rebuild_sparse_tensor\n",
    b"h\x00", b"h\xff", b"q\x00", b"q\xff", b"j\xff\xff\xff\xff", b"r\xff\xff\xff\xff", b"J\xff\xff\xff\xff",
    b"\x8a\xff", b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\xff", b"B\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"L1L\n",
    b"G" + struct.pack(">d", 1e308), b"I01\n", b"F1e999\n", b"I" + b"9" * 5000 + b"\n", b"S'x'\n",
    b"Vx\\ud83d\n", b"P0\n",
    storage(), storage("9"), storage("0", 1 << 40), storage("0", 4, "LongStorage"), storage("0", 4,
    "FloatStorage", "cuda:0"),
    storage("../x"), storage("0", -1), tensor(), tensor((1 << 40,), (0,)), tensor((2, 2), (1, 1)), tensor((-1,), (1,)),
    tensor((4,), (-1,)), tensor((5,), (1,)), tensor((4,), (1,), 1), tensor((), ()), tensor((0, 7), (1, 1), 9),
    tensor((2,), (1, 1)), call(name("torch", "Size"), sizes((1, 2))), call(name("collections", "OrderedDict")),
)  # fmt: skip
"""Opcodes and whole values that a loader may trust."""


def split(data: bytes) -> list[bytes]:
    """Return the opcodes of a pickle, each with its argument; the last part is what is no pickle."""
    parts: list[bytes] = []
    places: list[int] = []
    end = 0
    try:
        for _, _, place in pickletools.genops(data):
            places.append(place or 0)
        end = places[-1] + 1
    except Exception:
        end = places[-1] if places else 0
    for start, stop in zip(places, [*places[1:], end], strict=True):
        parts.append(data[start:stop])
    return [*(part for part in parts if part), data[end:]]


def changed(rng: random.Random, data: bytes, most: int = 3) -> bytes:
    """Return a pickle with up to ``most`` opcodes changed."""
    parts = split(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(parts))
        draw = rng.randrange(9)
        if draw == 0:
            del parts[at]
        elif draw == 1:
            parts.insert(at, rng.choice(ODD))
        elif draw == 2:
            parts[at] = rng.choice(ODD)
        elif draw == 3:
            parts[at:at] = parts[max(0, at - rng.randint(1, 6)) : at + 1] * rng.choice((1, 1, 2, 200))
        elif draw == 4:
            to = rng.randrange(len(parts))
            parts[at], parts[to] = parts[to], parts[at]
        elif draw == 5:
            parts[at] = edited(rng, parts[at], most=1)
        else:
            numbers = [place for place, part in enumerate(parts) if part[:1] in (b"K", b"M", b"J", b"\x8a", b"X", b"c")]
            if numbers:
                at = rng.choice(numbers)
                parts[at] = _refilled(rng, parts[at])
        parts = parts or [b""]
    return b"".join(parts)


def _refilled(rng: random.Random, part: bytes) -> bytes:
    if part[:1] == b"X":
        return text(
            rng.choice((*NAMES, "storage", "cpu", "cuda:0", "meta", "0", "1", "weight", "state_dict", "module.x"))
        )
    if part[:1] == b"c":
        kinds = ("FloatStorage", "HalfStorage", "BFloat16Storage", "LongStorage", "UntypedStorage", "BoolStorage",
                 "ComplexFloatStorage", "QInt8Storage", "Float8_e4m3fnStorage", "Tensor", "Size", "int32")  # fmt: skip
        return name("torch", rng.choice(kinds)) if rng.random() < 0.7 else rng.choice(ODD)
    value = rng.choice((*NUMBERS, 1, 2, 3, 4, 5, 8, 16, -1, -2))
    return number(value)
