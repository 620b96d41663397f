"""The cells of the grid: what is declared, what is stored, and in which files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

Flag = bool | str | None

ABSENT = "absent"
FLAGS: tuple[Flag, ...] = (True, False, ABSENT, None)
"""Values of ``tie_word_embeddings``; ``ABSENT``: the config has no such key, ``None``: it is null."""
HEADS = ("absent", "equal", "near", "different", "rows")
"""The stored head beside the embedding: equal, two rows differ, all rows differ, or it has more rows."""
NESTED: tuple[tuple[Flag, Flag], ...] = ((ABSENT, True), (ABSENT, False), (True, False), (False, True), (None, True))
DTYPES = ("BF16", "F16", "mixed")
LAYOUTS = ("sharded", "stray", "stray-model", "two-formats", "torch")


@dataclass(frozen=True)
class Cell:
    """One checkpoint. ``flags`` go with the levels of the config, the top first.

    ``dtype`` is that of every tensor; ``mixed`` stores the head in BF16 beside F32. ``layout`` names the files:
    ``stray`` and ``stray-model`` hold the head in a file that the index does not name; ``two-formats`` has a
    ``pytorch_model.bin`` without the head beside the safetensors file.
    """

    family: str
    flags: tuple[Flag, ...]
    head: str
    embedding: bool = True
    bias: str = "none"
    layout: str = "single"
    dtype: str = "F32"

    @property
    def name(self) -> str:
        """Return a short name for a report."""
        flags = "/".join({True: "T", False: "F", ABSENT: "-", None: "null"}[flag] for flag in self.flags)
        parts = [self.family, flags, f"head {self.head}", "" if self.embedding else "no embedding"]
        parts += [f"bias {self.bias}" if self.bias != "none" else ""]
        parts += [self.layout if self.layout != "single" else "", self.dtype if self.dtype != "F32" else ""]
        return ", ".join(filter(None, parts))


def cells(family: str, levels: int) -> Iterator[Cell]:
    """Yield the cells of a family whose config has ``levels`` levels (1 or 2) with a flag."""

    def flags(flag: Flag) -> tuple[Flag, ...]:
        return (flag,) * levels

    for declared, head, embedding in itertools.product(FLAGS, HEADS, (True, False)):
        if embedding or head != "absent" or declared in (True, False):
            yield Cell(family, flags(declared), head, embedding)
    for pair, head in itertools.product(NESTED if levels == 2 else (), ("absent", "equal", "different")):
        yield Cell(family, pair, head)
    for flag, head, bias in itertools.product((True, False), ("absent", "different"), ("zero", "nonzero")):
        yield Cell(family, flags(flag), head, bias=bias)
    for layout, declared, head in itertools.product(LAYOUTS, FLAGS[:3], ("absent", "equal", "different")):
        if head != "absent" or not layout.startswith("stray"):
            yield Cell(family, flags(declared), head, layout=layout)
    for dtype, flag, head in itertools.product(DTYPES, (True, False), ("absent", "equal", "near", "different")):
        if head != "absent" or dtype != "mixed":
            yield Cell(family, flags(flag), head, dtype=dtype)
