"""Tiny models, and the faults that are planted in them."""

from __future__ import annotations

import copy
from typing import Any

from fixtures import zoo
from tests.lazy import torch


def llama(*, tied: bool = True) -> Any:
    """A tiny Llama."""
    return zoo.build("LlamaForCausalLM", tie=tied)


def net(*, tied: bool = True) -> torch.nn.Module:
    """A module without config, with the two accessors and one parameter for both."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(50, 8)
            self.out = torch.nn.Linear(8, 50, bias=False)
            if tied:
                self.out.weight = self.table.weight

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.table

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.out

    return Net()


def replace_embedding(model: Any) -> None:
    """A resize by hand: the head keeps the old matrix."""
    model.model.embed_tokens = torch.nn.Embedding(120, 64)


def copy_head(model: Any) -> None:
    """A deep copy of one module has a parameter of its own."""
    model.lm_head = copy.deepcopy(model.lm_head)


def clear_flag(model: Any) -> None:
    """The config says untied, the parameters are one."""
    model.config.tie_word_embeddings = False


def share_storage(model: Any) -> None:
    """Two parameters of one storage: an optimizer updates both."""
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.data)


def change_head(model: Any) -> None:
    """An adapter merged into the head alone."""
    copy_head(model)
    model.lm_head.weight.data[3] += 1


def quantise_head(model: Any) -> None:
    """A quantiser replaces the head by one with rounded values."""
    weight = model.lm_head.weight.detach()
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight = torch.nn.Parameter((weight * 8).round() / 8)
    model.lm_head = head


FAULTS = {
    replace_embedding: "TIE001",
    copy_head: "TIE002",
    clear_flag: "TIE003",
    share_storage: "",
    change_head: "TIE001",
    quantise_head: "TIE001",
}
"""Each fault and the rule that reports it."""
