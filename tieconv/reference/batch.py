"""Define the tokens that a model is run on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.reference.features import Features


@record
class Batch:
    """Token ids (batch × sequence, int64) and their mask: 1 for a token, 0 for padding.

    ``decoder_ids`` are set for an encoder-decoder, ``decoder_mask`` if some of them are padding. ``types`` are set for
    a model with token types. Without ``placed`` the model numbers the positions itself. ``embeds`` are rows (batch ×
    sequence × width) that a decoder reads in place of the ids. ``blocks`` are token types that change what a token
    attends to. ``features`` are what an encoder reads in place of the ids, which then have no columns.
    """

    ids: Any
    mask: Any
    decoder_ids: Any = None
    types: Any = None
    placed: bool = True
    decoder_mask: Any = None
    given_positions: Any = None
    embeds: Any = None
    blocks: Any = None
    features: Features | None = None

    @property
    def positions(self) -> Any:
        """Position ids: the given ones, or as generation counts them, from each row's first token."""
        if self.given_positions is not None:
            return self.given_positions
        return (self.mask.cumsum(1) - 1).clamp(min=0)

    @property
    def answered(self) -> Any:
        """The token ids that the logits belong to: the decoder's, if the model has a decoder."""
        return self.ids if self.decoder_ids is None else self.decoder_ids

    def until(self, end: int) -> Batch:
        """Return the first ``end`` tokens of each row: the decoder's, if the model has a decoder."""
        if self.decoder_ids is not None:
            behind = None if self.decoder_mask is None else self.decoder_mask[:, :end]
            return replace(self, decoder_ids=self.decoder_ids[:, :end], decoder_mask=behind)
        types = None if self.types is None else self.types[:, :end]
        positions = None if self.given_positions is None else self.given_positions[..., :end]
        embeds = None if self.embeds is None else self.embeds[:, :end]
        blocks = None if self.blocks is None else self.blocks[:, :end]
        ids, mask = self.ids[:, :end], self.mask[:, :end]
        cut = replace(self, ids=ids, mask=mask, types=types, given_positions=positions)
        return replace(cut, embeds=embeds, blocks=blocks)
