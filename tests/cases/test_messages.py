"""The messages that the catalogue quotes are those that the tools print."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from safetensors import safe_open

from fixtures.cases import CASES
from tests.lazy import load_file, load_model, save_file, save_model, torch, transformers

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = "dict[str, torch.Tensor]"
SIZES = {
    "vocab_size": 8,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def llama(*, tied: bool, **sizes: int) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **sizes}, tie_word_embeddings=tied))


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


def adapter(path: Path, **settings: list[str]) -> None:
    """Load an adapter of a model with more tokens."""
    from peft import LoraConfig, PeftModel, get_peft_model

    get_peft_model(llama(tied=False, vocab_size=10), LoraConfig(r=2, **settings)).save_pretrained(path)
    PeftModel.from_pretrained(llama(tied=False), path)


def resized(path: Path) -> None:
    """Load an adapter that PEFT saved with the resized tables."""
    from peft import LoraConfig, PeftModel, get_peft_model

    llama(tied=False).save_pretrained(path / "base")
    grown = llama(tied=False)
    grown.resize_token_embeddings(10)
    trained = get_peft_model(grown, LoraConfig(r=2, target_modules=["q_proj"]))
    trained.peft_config["default"].base_model_name_or_path = str(path / "base")
    trained.save_pretrained(path / "adapter")
    PeftModel.from_pretrained(llama(tied=False), path / "adapter")


def stored(path: Path, name: str, change: Callable[[Tensors], object] = dict) -> torch.Tensor:
    return load_file(saved(path, change, tied=False) / "model.safetensors")[name]


def without_shard(path: Path) -> None:
    """Load a model without the second of its three shards."""
    llama(tied=False, vocab_size=64).save_pretrained(path, max_shard_size="1KB")
    (path / "model-00002-of-00003.safetensors").unlink()
    transformers.LlamaForCausalLM.from_pretrained(path)


def wider_head() -> None:
    """Run a model whose head was replaced by one of another width."""
    model = llama(tied=False)
    model.set_output_embeddings(torch.nn.Linear(6, 8, bias=False))
    model(torch.tensor([[1]]))


def listed() -> None:
    """A class of the days before transformers 5."""

    class Listed(transformers.LlamaForCausalLM):
        _tied_weights_keys = ["lm_head.weight"]  # type: ignore[assignment]  # noqa: RUF012

    Listed(transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))


@cache
def table() -> torch.Tensor:
    return torch.randn(8, 4)


def views() -> torch.nn.Module:
    """Two overlapping halves of one storage."""

    class Views(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(12, 4)
            self.register_buffer("one", whole[:8])
            self.register_buffer("two", whole[4:])

    return Views()


def more_layers(tensors: Tensors) -> None:
    tensors.update({name.replace(".0.", ".1."): tensors[name].clone() for name in list(tensors) if ".0." in name})


def strict(path: Path, change: Callable[[Tensors], object], *, tied: bool = True) -> None:
    load_model(llama(tied=tied), str(saved(path, change, tied=tied) / "model.safetensors"))


def without_expert(path: Path, part: str) -> None:
    """Load a Mixtral without a part of an expert."""
    transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=2)).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    save_file(
        {name: tensors[name] for name in tensors if part not in name}, path / "model.safetensors", {"format": "pt"}
    )
    transformers.MixtralForCausalLM.from_pretrained(path)


def without_bias(path: Path) -> None:
    """Load a Phi without the bias of its head."""
    transformers.PhiForCausalLM(transformers.PhiConfig(**SIZES)).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    del tensors["lm_head.bias"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    transformers.PhiForCausalLM.from_pretrained(path)


def into_torch(path: Path, change: Callable[[Tensors], object], *, tied: bool = False) -> None:
    llama(tied=tied).load_state_dict(load_file(saved(path, change, tied=tied) / "model.safetensors"))


def saved_shared(path: Path) -> None:
    model = llama(tied=False)
    model.model.layers[0].mlp.up_proj.weight = model.model.layers[0].mlp.gate_proj.weight
    model.save_pretrained(path)


def larger(*names: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: torch.zeros(10, 4) for name in names})


def renamed(path: Path) -> None:
    file = saved(path, dict, tied=True) / "model.safetensors"
    file.rename(path / "model-00001-of-00002.safetensors")
    transformers.LlamaForCausalLM.from_pretrained(path)


def cut(path: Path, name: str, load: Callable[[Path], object]) -> None:
    save_file({EMBED: table()}, path / "x.safetensors")
    torch.save({EMBED: table()}, path / "x.bin")
    (path / name).write_bytes((path / name).read_bytes()[:100])
    load(path / name)


def empty_dtype(path: Path) -> None:
    header = b'{"a":{"dtype":"","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    load_file(path)


def short_bias(path: Path) -> None:
    """Both names of the bias of a BERT, before a resize."""
    sizes = {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=8, **sizes))
    stored = model.state_dict()
    short = {"cls.predictions.bias": torch.zeros(7), "cls.predictions.decoder.bias": torch.zeros(7)}
    model.save_pretrained(path, state_dict=stored | short, safe_serialization=True)
    transformers.BertForMaskedLM.from_pretrained(path, ignore_mismatched_sizes=True)


LAYER, LORA = "model.layers.0.", "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
LOADED: dict[str, tuple[Callable[[Tensors], object], bool]] = {
    "C01": (lambda t: t.update({HEAD: torch.randn(8, 4)}), True),
    "C18": (lambda t: t.update({"lm_head.bias": torch.randn(8)}), True),
    "C06": (lambda t: t.pop(HEAD), False),
    "C30": (lambda t: t.pop(HEAD), False),
    "C32": (lambda t: t.update({HEAD: torch.zeros(0)}), False),
    "C33": (prefixed("base_model.model."), False),
    "C37": (lambda t: t.update({EMBED: torch.randn(10, 4), HEAD: torch.randn(10, 4)}), False),
    "C53": (
        lambda t: t.update({EMBED: torch.full((8, 4), float("nan")), HEAD: torch.full((8, 4), float("nan"))}),
        True,
    ),
    "C56": (lambda t: t.pop(EMBED), True),
    "C62": (lambda t: t.pop(f"{LAYER}self_attn.k_proj.weight"), True),
    "C63": (more_layers, True),
}
DONE: dict[str, tuple[Callable[[Path], object], ...]] = {
    "C02": (lambda path: lora(), lambda path: adapter(path, target_modules=["embed_tokens"])),
    "C04": (lambda path: strict(path, lambda t: t.update({HEAD: t[EMBED].clone()})),),
    "C06": (lambda path: strict(path, lambda t: t.pop(HEAD), tied=False),),
    "C07": (
        lambda path: safe_open(saved(path, dict, tied=True) / "model.safetensors", "pt").get_tensor(HEAD),
        lambda path: into_torch(path, dict, tied=True),
    ),
    "C08": (lambda path: stored(path, EMBED, lambda t: t.pop(EMBED)),),
    "C19": (without_bias, lambda path: stored(path, "lm_head.bias")),
    "C20": (short_bias,),
    "C25": (lambda path: save_file({EMBED: table(), HEAD: table()}, path / "x"), lambda path: saved_shared(path)),
    "C26": (lambda path: save_file({EMBED: table(), HEAD: table().t()}, path / "x"),),
    "C27": (lambda path: save_model(views(), str(path / "x")),),
    "C30": (lambda path: empty_dtype(path / "x"),),
    "C33": (
        lambda path: transformers.LlamaForCausalLM.from_pretrained(saved(path, prefixed("_orig_mod."), tied=False)),
        lambda path: transformers.LlamaForCausalLM.from_pretrained(saved(path, larger(LORA), tied=True)),
        lambda path: into_torch(path, larger(f"_orig_mod.{LAYER}mlp.up_proj.weight")),
        lambda path: stored(path, EMBED, prefixed("_orig_mod.")),
    ),
    "C56": (lambda path: stored(path, EMBED, lambda t: t.pop(EMBED)),),
    "C37": (lambda path: into_torch(path, larger(EMBED, HEAD)),),
    "C55": (lambda path: listed(),),
    "C62": (
        lambda path: strict(path, lambda t: t.pop(f"{LAYER}self_attn.k_proj.weight")),
        lambda path: without_expert(path, "experts.1."),
        lambda path: without_expert(path, "experts.1.w1."),
    ),
    "C63": (lambda path: strict(path, more_layers),),
    "C64": (renamed,),
    "C65": (lambda path: cut(path, "x.safetensors", load_file), lambda path: cut(path, "x.bin", torch.load)),
    "C66": (lambda path: into_torch(path, larger(f"{LAYER}mlp.gate_proj.weight")), lambda path: wider_head()),
    "C69": (lambda path: transformers.LlamaConfig(**SIZES, tie_word_embeddings=None),),
    "C67": (
        lambda path: adapter(path, target_modules=["lm_head", "embed_tokens"]),
        lambda path: adapter(path, target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"]),
        resized,
    ),
    "C70": (without_shard,),
    "C74": (
        lambda path: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))(torch.tensor([[8]])),
        lambda path: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, pad_token_id=8)),
    ),
    "C72": (lambda path: transformers.LlamaModel.from_pretrained(saved(path, dict, tied=False)),),
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


INSTALLED = ("transformers 5.23.0", "safetensors 0.8.0", "peft 0.21.2", "torch 2.13.0")


@pytest.mark.parametrize("name", sorted(LOADED.keys() | DONE.keys()))
def test_messages_are_printed(name: str, messages: list[str], tmp_path: Path) -> None:
    """Every message that the installed transformers, safetensors or peft is said to print for the case, it prints."""
    runs = [loading(*LOADED[name])] if name in LOADED else []
    runs += DONE.get(name, ())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number, run in enumerate(runs):
            (tmp_path / str(number)).mkdir()
            try:
                run(tmp_path / str(number))
            except Exception as error:
                messages.append(f"{type(error).__name__}: {error}")
    messages += [str(warning.message) for warning in warned]
    printed = re.sub(rf"\x1b\[\d*m|{re.escape(str(tmp_path))}/\d/", "", " ".join(messages))
    printed = re.sub(r"\s+", " ", printed)
    seen = [message.text for message in CASES[name].messages if message.seen in INSTALLED]
    assert seen and [text for text in seen if text not in printed] == [], printed


def test_every_message_has_a_source() -> None:
    """Printed by a version that is named, or quoted in a thread that is named; never both, never neither."""
    for name, case in CASES.items():
        for message in case.messages:
            assert bool(message.seen) != bool(message.thread), (name, message)
            assert not message.thread or re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", message.thread)
