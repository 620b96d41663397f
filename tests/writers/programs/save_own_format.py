"""Models with names of their own, in a `.pt` file: each program's state dict, alone and with a training state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.writers.program import PROMPT, Case, Facts, serve

IDS = torch.tensor([PROMPT])
ROWS, WIDTH = 128, 64


def x_transformers(tied: bool) -> Any:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=WIDTH, depth=2, heads=4, attn_dim_head=16)
    return TransformerWrapper(num_tokens=ROWS, max_seq_len=64, tie_embedding=tied, attn_layers=layers)


def whisper(tied: bool) -> Any:
    import whisper.model as model

    sizes = {"n_mels": 8, "n_audio_ctx": 16, "n_audio_state": WIDTH, "n_audio_head": 4, "n_audio_layer": 1,
             "n_vocab": ROWS, "n_text_ctx": 16, "n_text_state": WIDTH, "n_text_head": 4, "n_text_layer": 1}  # fmt: skip
    return model.Whisper(model.ModelDimensions(**sizes))


def fastai(tied: bool) -> Any:
    from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_lm_config
    from fastai.text.models.core import get_language_model

    words = {**awd_lstm_lm_config, "emb_sz": WIDTH, "n_hid": WIDTH, "n_layers": 2, "tie_weights": tied}
    return get_language_model(AWD_LSTM, ROWS, config=words)


def olmo(tied: bool) -> Any:
    from olmo import model

    sizes = {"d_model": WIDTH, "n_heads": 4, "n_layers": 2, "mlp_ratio": 2, "max_sequence_length": 64}
    return model.OLMo(model.ModelConfig(**sizes, vocab_size=ROWS, embedding_size=ROWS, weight_tying=tied, rope=True))


def opennmt(tied: bool) -> Any:
    from onmt.model_builder import build_base_model

    options, vocabularies = opennmt_setup(tied)
    model = build_base_model(options, vocabularies)
    for parameter in {id(one): one for one in model.parameters()}.values():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def opennmt_setup(tied: bool) -> tuple[Any, Any]:
    """Return the options of a training and its vocabularies."""
    import onmt.opts
    import pyonmttok
    from onmt.utils.parse import ArgumentParser

    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    words = "-data d -src_vocab v -tgt_vocab v -encoder_type transformer -decoder_type transformer -layers 2 -heads 4 "
    words += f"-hidden_size {WIDTH} -word_vec_size {WIDTH} -transformer_ff {WIDTH} -dropout 0 -position_encoding "
    words += "-share_vocab -share_embeddings -share_decoder_embeddings" if tied else ""
    options, _ = parser.parse_known_args(words.split())
    options.data_task = "seq2seq"
    ArgumentParser.update_model_opts(options)
    special = ["<unk>", "<blank>", "<s>", "</s>"]
    tokens = pyonmttok.build_vocab_from_tokens([f"t{number}" for number in range(ROWS - 4)], special_tokens=special)
    return options, {"src": tokens, "tgt": tokens, "data_task": "seq2seq", "decoder_start_token": "<s>"}


def opennmt_save(model: Any, tied: bool, trained: bool, folder: Path) -> None:
    from onmt.models.model_saver import ModelSaver

    class Optimiser:
        def state_dict(self) -> dict[str, Any]:
            return {"training_step": 3, "optimizer": {}}

    ModelSaver(str(folder / "m"), model, *opennmt_setup(tied), Optimiser()).save(3)
    (folder / "m_step_3.pt").rename(folder / "model.pt")


def opennmt_state(state: dict[str, Any]) -> dict[str, Any]:
    return {**state["model"], **{f"generator.{key}": value for key, value in state["generator"].items()}}


def opennmt_logits(model: Any) -> Any:
    ids = IDS.unsqueeze(-1)
    return model.generator(model(ids, ids, torch.tensor([IDS.shape[1]]))[0])


def torch_save(model: Any, tied: bool, trained: bool, folder: Path) -> None:
    """Save the state dict, in training beside other values."""
    state = model.state_dict()
    torch.save({PROGRAM.key: state, **PROGRAM.beside(model)} if trained else state, folder / "model.pt")


@dataclass(frozen=True)
class Program:
    """How a program builds its model, saves it, takes the state dict out of the file, and computes logits."""

    build: Callable[[bool], Any]
    save: Callable[..., None] = torch_save
    key: str = "model"
    beside: Callable[[Any], dict[str, Any]] = lambda model: {"epoch": 1}
    state: Callable[[dict[str, Any]], Any] = lambda state: state.get(PROGRAM.key, state)
    logits: Callable[[Any], Any] = lambda model: model(IDS)
    names: tuple[str, str] = ("", "")
    """The embedding and the head in the state dict."""
    ties: tuple[bool, ...] = (True, False)
    trains: tuple[bool, ...] = (False, True)


PROGRAMS = {
    "x-transformers": Program(x_transformers, names=("token_emb.emb.weight", "to_logits.weight")),
    "whisper": Program(
        whisper,
        key="model_state_dict",
        beside=lambda model: {"dims": vars(model.dims)},
        logits=lambda model: model.decoder(IDS, torch.ones(1, 16, WIDTH)),
        ties=(True,),
        trains=(True,),
    ),
    "fastai": Program(
        fastai,
        beside=lambda model: {"opt": {"state": [], "hypers": []}},
        logits=lambda model: model(IDS)[0],
        names=("0.encoder.weight", "1.decoder.weight"),
    ),
    "olmo": Program(
        olmo, logits=lambda model: model(IDS).logits, names=("transformer.wte.weight", "transformer.ff_out.weight")
    ),
    "opennmt-py": Program(opennmt, opennmt_save, state=opennmt_state, logits=opennmt_logits, trains=(True,)),
}
PROGRAM = PROGRAMS[sys.argv[1]]


def build(tied: bool) -> Any:
    torch.manual_seed(0)
    return PROGRAM.build(tied).eval()


def write(tied: bool, trained: bool, folder: Path) -> Facts:
    PROGRAM.save(build(tied), tied, trained, folder)
    return {"tied": tied}


def read(tied: bool, file: Path) -> Any:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(file)
    else:
        state = torch.load(file, weights_only=False)
        state = PROGRAM.state(state) if isinstance(next(iter(state.values())), dict) else state
    model = build(tied)
    missing, unexpected = torch.nn.Module.load_state_dict(model, state, strict=False)
    absent = {id(value) for key, value in model.state_dict(keep_vars=True).items() if key in missing}
    shared = {id(value) for key, value in model.state_dict(keep_vars=True).items() if key not in missing}
    if unexpected or absent - shared:
        raise ValueError(f"missing {missing}, unexpected {unexpected}")
    with torch.no_grad():
        return PROGRAM.logits(model)[0, -1].numpy()


def cases() -> Iterator[Case]:
    for tied in PROGRAM.ties:
        for trained in PROGRAM.trains:
            title = f"{'tied' if tied else 'untied'}{' in training' if trained else ''}"
            made = partial(write, tied, trained), partial(read, tied)
            named = ("FMT001",) if PROGRAM.build is opennmt else ()  # its options are an argparse.Namespace
            yield Case(title, *made, file="model.pt", named=named)
            if PROGRAM.names[0] and not trained and (PROGRAM.build is not olmo or not tied):  # OLMo has no tied head
                words = ("--embed", PROGRAM.names[0], "--head", PROGRAM.names[1])
                yield Case(f"{title} with names", *made, file="model.pt", words=words, loader="program")


if __name__ == "__main__":
    serve(cases())
