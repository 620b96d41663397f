"""Classes whose head bias has no initial values: left out of a file, it is whatever the memory held."""

from __future__ import annotations

from tieconv.checkpoint.family import Family

_UNSET = frozenset(
    {
        "BlipForConditionalGeneration",
        "Data2VecTextForCausalLM",  # transformers 5 alone, as the next four
        "Data2VecTextForMaskedLM",
        "FNetForMaskedLM",
        "FNetForPreTraining",
        "LongformerForMaskedLM",
        "ErnieForCausalLM",  # transformers 4 alone, as the next two
        "ErnieForMaskedLM",
        "ErnieForPreTraining",
        "NystromformerForMaskedLM",
        "PerceiverForMaskedLM",
    }
)
"""Measured: each class with a head bias saved without it and loaded by transformers 5.23 and 4.57, torch's
uninitialised memory filled. The others start it at zero."""


def bias_unset(family: Family) -> bool:
    """Whether some transformers version gives an absent head bias no values at all."""
    return family.text_class in _UNSET
