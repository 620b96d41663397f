"""Define one batch that a graph is measured on."""

from __future__ import annotations

from enum import StrEnum

from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.graph.bindings import Padding

STAGGER = 2
"""By how many positions each row's padding is shorter than that of the row before."""
_CYCLE = 6
"""Rows after which the paddings repeat."""


class Layout(StrEnum):
    """Where the masked positions of a row are."""

    LEFT = "left padding"
    RIGHT = "right padding"
    HOLE = "hole in the mask"


@record
class Cell:
    """A batch shape: ``past`` tokens are in the cache, and ``padding`` positions of the first row are masked.

    Each later row has `STAGGER` masked positions fewer, up to six rows. ``layout`` says where they are. ``where``
    says where the graph takes padding, if not on the left. With ``steps`` the tokens after the past are fed one by
    one. ``judged_last`` is how many of the last positions are judged; 0 means all. ``tokens`` are the ids of a
    batch with one token in each row; without them the ids are random. ``own`` is a batch that the user gave. With
    ``embeds`` the batch has random rows in place of ids. With ``blocks`` some tokens attend to later ones. For an
    encoder-decoder ``sequence`` counts decoder tokens and ``past`` encoder tokens.
    """

    batch: int
    sequence: int
    past: int
    padding: int
    seed: int
    steps: int = 0
    where: Padding = Padding.FRONT
    layout: Layout = Layout.LEFT
    judged_last: int = 0
    tokens: tuple[int, ...] = ()
    own: bool = False
    embeds: bool = False
    blocks: bool = False

    @property
    def length(self) -> int:
        """Tokens of a row, including padding."""
        return self.past + self.sequence

    @property
    def judged(self) -> int:
        """How many of the last positions are judged."""
        return self.judged_last or self.sequence

    @property
    def group(self) -> str:
        """The plot for the cell's errors."""
        if self.own:
            return "own inputs"
        if self.blocks:
            return "tokens that attend to later ones"
        if self.embeds:
            return "random rows of inputs_embeds"
        if self.steps:
            return "cached steps"
        if self.tokens:
            return "every token"
        if self.padding:
            return str(self.where) if self.where is Padding.BEHIND else str(self.layout)
        if self.past:
            return "past"
        return "one token" if self.sequence == 1 else "no past"

    def masked(self, row: int, length: int) -> slice:
        """Return the masked positions of a row with ``length`` positions. At least one position stays."""
        width = min(max(self.padding - STAGGER * (row % _CYCLE), 0), length - 1)
        first = {Layout.LEFT: 0, Layout.RIGHT: length - width, Layout.HOLE: min(length // 3, length - width)}[
            self.layout
        ]
        return slice(first, first + width)
