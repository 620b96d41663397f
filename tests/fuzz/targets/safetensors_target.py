"""Safetensors: the header as a JSON tree, offsets and widths that lie, bytes behind and between."""

from __future__ import annotations

import random

from tests.fuzz.case import Case
from tests.fuzz.models import DTYPES, config, entries, tensors
from tests.fuzz.mutate.edits import NAMES, edited, size
from tests.fuzz.mutate.json_tree import Pairs, Raw, changed, text, tree

NAME = "model.safetensors"
KINDS = (*DTYPES, "f32", "u8", "F3", "F8", "BF32", "C128", "I4", "float32", "", "F8_E4M3FN", "bool")
_EXTRA: tuple[object, ...] = (
    *KINDS[:6], "F3", "f32", [0], [8, 4], [0, 0], [2, -4], [1] * 65, [1 << 32, 1 << 32], [0, 1 << 63], [4, 0],
    [0, 128], [128, 256], [8.0, 4], [Raw("-0"), 4], [True, 4], ["8", 4], Pairs([["dtype", "U8"], ["shape", [0]],
    ["data_offsets", [0, 0]]]), ["U8", [0], [0, 0]], Pairs([["format", None]]), Pairs([["format", 1]]),
)  # fmt: skip


def damaged_file(rng: random.Random, stored: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """Return a damaged safetensors file of these tensors."""
    header, data = entries(stored)
    root = tree(header)
    assert isinstance(root, Pairs)
    if rng.random() < 0.5:
        _sensible(rng, root)
    if rng.random() < 0.5:
        found = changed(rng, root, _EXTRA, rng.choice((1, 1, 3)))
        root = found if isinstance(found, Pairs) else Pairs([["x", found]])
    body = text(root)
    if rng.random() < 0.2:
        body = edited(rng, body, 0, len(body), 2)
    if rng.random() < 0.15:
        body = rng.choice(
            (body + b" " * 7, body + b"\0", b" " + body, body + b"\n", body + b"}", b"\xef\xbb\xbf" + body)
        )
    length = len(body) if rng.random() < 0.92 else size(rng, len(body))
    if rng.random() < 0.15:
        data = edited(rng, data, most=1)
    whole = (length & ((1 << 64) - 1)).to_bytes(8, "little") + body + data
    return edited(rng, whole, most=2) if rng.random() < 0.06 else whole


def _sensible(rng: random.Random, root: Pairs) -> None:
    """Change one tensor's entry in a way that keeps its form."""
    pair = rng.choice(root[1:] or root)
    entry = pair[1]
    if not isinstance(entry, Pairs) or len(entry) < 3:
        return
    draw = rng.randrange(6)
    if draw == 0:
        entry[0][1] = rng.choice(KINDS)
    elif draw == 1:
        entry[1][1] = [rng.choice((0, 1, 2, 4, 8, 16, 32, 1 << 31)) for _ in range(rng.randint(0, 4))]
    elif draw == 2:
        start = rng.choice((0, 16, 128, 144, 176))
        entry[2][1] = [start, start + rng.choice((0, 16, 32, 128))]
    elif draw == 3:
        pair[0] = rng.choice(NAMES)
    elif draw == 4:
        rng.shuffle(entry)
    else:
        root[0][1] = Pairs([[rng.choice(NAMES), rng.choice((*NAMES, None, 1, [], True))]])


def make(rng: random.Random) -> Case:
    """Return a model with one damaged file."""
    stored = tensors(tied=rng.random() < 0.3, copy=rng.random() < 0.5)
    files = {NAME: damaged_file(rng, stored)}
    if rng.random() < 0.5:
        files["config.json"] = config(tie_word_embeddings=rng.random() < 0.5)
    return Case("safetensors", files, rng.choice((".", NAME)), "safetensors", (NAME,))
