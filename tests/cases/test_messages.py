"""The messages that the catalogue quotes are those that the tools print."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file, save_model

from fixtures.cases import CASES

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = dict[str, torch.Tensor]
SIZES = {
    "vocab_size": 8,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def llama(*, tied: bool) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied))


def saved(folder: Path, change: Callable[[Tensors], object], *, tied: bool) -> Path:
    """A tiny model as transformers saves it, its tensors changed."""
    llama(tied=tied).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def prefixed(prefix: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    return change


def lora() -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(llama(tied=True), LoraConfig(r=2, target_modules=["lm_head"])).merge_and_unload()


def listed() -> None:
    """A class of the days before transformers 5."""

    class Listed(transformers.LlamaForCausalLM):
        _tied_weights_keys = ["lm_head.weight"]  # type: ignore[assignment]  # noqa: RUF012

    Listed(transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))


class Views(torch.nn.Module):
    """Two overlapping halves of one storage."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(12, 4)
        self.register_buffer("one", whole[:8])
        self.register_buffer("two", whole[4:])


def empty_dtype(path: Path) -> None:
    header = b'{"a":{"dtype":"","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    load_file(path)


TABLE = torch.randn(8, 4)
LOADED: dict[str, tuple[Callable[[Tensors], object], bool]] = {
    "C01": (lambda t: t.update({HEAD: torch.randn(8, 4)}), True),
    "C18": (lambda t: t.update({"lm_head.bias": torch.randn(8)}), True),
    "C06": (lambda t: t.pop(HEAD), False),
    "C30": (lambda t: t.pop(HEAD), False),
    "C32": (lambda t: t.update({HEAD: torch.zeros(0)}), False),
    "C33": (prefixed("base_model.model."), False),
    "C37": (lambda t: t.update({EMBED: torch.randn(10, 4)}), False),
    "C53": (
        lambda t: t.update({EMBED: torch.full((8, 4), float("nan")), HEAD: torch.full((8, 4), float("nan"))}),
        True,
    ),
    "C56": (lambda t: t.pop(EMBED), True),
}
DONE: dict[str, Callable[[Path], object]] = {
    "C02": lambda path: lora(),
    "C07": lambda path: safe_open(saved(path, dict, tied=True) / "model.safetensors", "pt").get_tensor(HEAD),
    "C25": lambda path: save_file({EMBED: TABLE, HEAD: TABLE}, path / "x"),
    "C26": lambda path: save_file({EMBED: TABLE, HEAD: TABLE.t()}, path / "x"),
    "C27": lambda path: save_model(Views(), str(path / "x")),
    "C30": lambda path: empty_dtype(path / "x"),
    "C33": lambda path: transformers.LlamaForCausalLM.from_pretrained(saved(path, prefixed("_orig_mod."), tied=False)),
    "C55": lambda path: listed(),
}


def loading(change: Callable[[Tensors], object], tied: bool) -> Callable[[Path], object]:
    return lambda path: transformers.LlamaForCausalLM.from_pretrained(saved(path, change, tied=tied))


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """What transformers logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger, level = transformers.logging.get_logger("transformers"), transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    transformers.logging.set_verbosity(level)


@pytest.mark.parametrize("name", sorted(LOADED.keys() | DONE.keys()))
def test_messages_are_printed(name: str, messages: list[str], tmp_path: Path) -> None:
    """Every message that the installed transformers, safetensors or peft is said to print for the case, it prints."""
    runs = [loading(*LOADED[name])] if name in LOADED else []
    runs += [DONE[name]] if name in DONE else []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number, run in enumerate(runs):
            (tmp_path / str(number)).mkdir()
            try:
                run(tmp_path / str(number))
            except Exception as error:
                messages.append(f"{type(error).__name__}: {error}")
    messages += [str(warning.message) for warning in warned]
    printed = re.sub(r"\s+", " ", re.sub(r"\x1b\[\d*m", "", " ".join(messages)))
    seen = [message.text for message in CASES[name].messages if message.seen not in ("", "transformers 4.57.6")]
    assert seen and [text for text in seen if text not in printed] == [], printed


def test_every_message_has_a_source() -> None:
    """Printed by a version that is named, or quoted in a thread that is named; never both, never neither."""
    for name, case in CASES.items():
        for message in case.messages:
            assert bool(message.seen) != bool(message.thread), (name, message)
            assert not message.thread or re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", message.thread)
