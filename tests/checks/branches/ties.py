"""Checkpoints for the side branches of the rules about ties."""

from __future__ import annotations

import numpy as np

from tests.checks.fixtures.model import (
    BART,
    BERT,
    BERT_EMBED,
    BERT_HEAD,
    EMBED,
    GEMMA,
    GEMMA3,
    HEAD,
    INNER_BIAS,
    INTERNVL,
    KIMI,
    LLAMA,
    NESTED_EMBED,
    NESTED_HEAD,
    OUTER_BIAS,
    REMOTE,
    T5,
    Array,
    Config,
    Tensors,
    bert,
    flagged,
    gptq,
    llama,
    matrix,
    vector,
    with_row,
)
from tests.checks.fixtures.tie import bart

Case = tuple[Config | None, Tensors]
TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)
OWN, COPY = llama(head=matrix(seed=1)), llama(head=matrix())
TABLES = {EMBED: matrix(), HEAD: matrix(seed=1)}
NESTED = {NESTED_EMBED: matrix()}
NESTED_OWN, NESTED_COPY = {**NESTED, NESTED_HEAD: matrix(seed=1)}, {**NESTED, NESTED_HEAD: matrix()}
CODES = gptq("lm_head", seed=1)
EMBED_CODES = gptq("model.embed_tokens", seed=3)
T5_OWN = {"shared.weight": matrix(), HEAD: matrix(seed=1)}
NORM = {"model.norm.weight": vector(4, seed=9)}
WEIGHT_NORM = {"lm_head.weight_g": matrix(8, 1), "lm_head.weight_v": matrix(seed=1)}
EMBED_NORM = {name.replace("lm_head", "model.embed_tokens"): part for name, part in WEIGHT_NORM.items()}
ARIA = {**INTERNVL, "architectures": ["AriaForConditionalGeneration"], "model_type": "aria"}
BRIDGETOWER = {"architectures": ["BridgeTowerForMaskedLM"], "model_type": "bridgetower"}
BRIDGETOWER_EMBED = "bridgetower.text_model.embeddings.word_embeddings.weight"
_BIAS = "relative_attention_bias.weight"
UDOP_OWN = {
    "shared.weight": matrix(),
    f"encoder.block.0.layer.0.SelfAttention.{_BIAS}": matrix(4),
    f"encoder.relative_bias.biases.0.{_BIAS}": matrix(4, seed=1),
}


def wrapped(tensors: Tensors, prefix: str) -> dict[str, Array]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def level(config: Config, name: str, value: object) -> Config:
    """The config with the flag of one level set to anything."""
    return {**config, name: {**config.get(name, {}), "tie_word_embeddings": value}}


def with_nan() -> Array:
    tensor = matrix()
    tensor[3, 2] = np.nan
    return tensor


CASES: dict[str, Case] = {
    "TIE001 a class that transformers 4 lacks": (
        {**TIED, "architectures": ["AfmoeForCausalLM"], "model_type": "afmoe"},
        OWN,
    ),
    "TIE008 a class that transformers 4 lacks": (
        {**TIED, "architectures": ["AfmoeForCausalLM"], "model_type": "afmoe"},
        {HEAD: matrix()},
    ),
    "TIE001 no config, class default": ({**GEMMA}, llama(head=with_row(matrix()))),
    "TIE001 scaled": (TIED, llama(head=matrix() * 8)),
    "TIE001 transposed": (flagged({**LLAMA, "vocab_size": 4}, True), {EMBED: matrix(4, 4), HEAD: matrix(4, 4).T}),
    "TIE001 whole other matrix": (TIED, OWN),
    "TIE001 always tied": (BART, {**bart("encoder", "decoder"), "model.encoder.embed_tokens.weight": matrix(seed=5)}),
    "TIE001 placeholder beside": (TIED, llama(head=np.zeros((0, 4), "<f4"))),
    "TIE001 two copies differ": (flagged(T5, True), {**T5_OWN, "encoder.embed_tokens.weight": matrix(seed=2)}),
    "TIE002 several copies": (
        flagged(T5, True),
        {"shared.weight": matrix(), HEAD: matrix(), "encoder.embed_tokens.weight": matrix()},
    ),
    "TIE002 beside a quantised head": (
        BART,
        {"model.shared.weight": matrix(), "model.encoder.embed_tokens.weight": matrix(), **CODES},
    ),
    "TIE002 guessed": (flagged(REMOTE, True), COPY),
    "TIE002 without the canonical name": (
        BART,
        {f"model.{side}.embed_tokens.weight": matrix() for side in ("encoder", "decoder")},
    ),
    "TIE003 config left the flag out": (LLAMA, llama()),
    "TIE003 guessed": (flagged(REMOTE, False), llama()),
    "TIE003 T5 with the flag false": (flagged(T5, False), {"shared.weight": matrix()}),
    "TIE003 T5 with quantised head": (flagged(T5, False), {"shared.weight": matrix(), **CODES}),
    "TIE003 a flag that scales": (
        flagged({**LLAMA, "architectures": ["CohereForCausalLM"], "model_type": "cohere"}, False),
        llama(),
    ),
    "TIE003 shapes that differ beside it": (
        flagged(BART, False),
        {"model.shared.weight": matrix(), "model.encoder.embed_tokens.weight": matrix(9)},
    ),
    "TIE004 two copies": (flagged(BART, False), {**bart("encoder", "decoder"), HEAD: matrix()}),
    "TIE004 half stored": (flagged(BART, False), {**bart("encoder"), HEAD: matrix()}),
    "TIE004 a cast copy": (UNTIED, llama(head=matrix().astype("<f2"))),
    "TIE004 levels that disagree": (flagged(GEMMA3, True, text_config=False), NESTED_COPY),
    "TIE004 guessed": (flagged(REMOTE, False), COPY),
    "TIE005 BART from the decoder": (BART, {"model.decoder.embed_tokens.weight": matrix()}),
    "TIE005 BART from the encoder": (BART, {"model.encoder.embed_tokens.weight": matrix()}),
    "TIE005 BART from both": (BART, {f"model.{side}.embed_tokens.weight": matrix() for side in ("encoder", "decoder")}),
    "TIE005 BART from the head": (BART, {HEAD: matrix()}),
    "TIE005 T5 from the encoder": (flagged(T5, True), {"encoder.embed_tokens.weight": matrix()}),
    "TIE005 T5 from the decoder and the head": (
        flagged(T5, True),
        {"decoder.embed_tokens.weight": matrix(), HEAD: matrix()},
    ),
    "TIE005 guessed": (flagged(REMOTE, True), {HEAD: matrix(), **NORM}),
    "TIE005 quantised embedding": (TIED, {HEAD: matrix(), **EMBED_CODES}),
    "TIE005 bias pair": (flagged(BERT, True), bert(inner=vector())),
    "TIE006 neither stored": (TIED, NORM),
    "TIE006 another prefix": (TIED, wrapped(llama(), "wrapper.")),
    "TIE006 two other prefixes": (TIED, {**wrapped(llama(), "one."), **wrapped(llama(), "two.")}),
    "TIE006 DDP": (TIED, wrapped(llama(), "module.")),
    "TIE006 DDP over a compiled model": (TIED, wrapped(llama(), "module._orig_mod.")),
    "TIE006 a part is wrapped": (TIED, {**wrapped({EMBED: matrix()}, "module."), **NORM}),
    "TIE006 quantised embedding": (TIED, {**EMBED_CODES, **NORM}),
    "TIE006 quantised head": (UNTIED, {**CODES, **NORM}),
    "TIE006 headless": ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, NORM),
    "TIE006 unknown class": (REMOTE, NORM),
    "TIE006 a name that may be renamed": (TIED, wrapped(llama(), "language_model.")),
    "TIE007 tied in 5, lost head": (level(INTERNVL, "text_config", False), NESTED),
    "TIE007 tied in 4 alone, own head": (level(ARIA, "text_config", True), NESTED_OWN),
    "TIE007 tied in 4 alone, no head": (BRIDGETOWER, {BRIDGETOWER_EMBED: matrix()}),
    "TIE007 tied in 4, own head": (INTERNVL, NESTED_OWN),
    "TIE007 tied in 4, equal head": (INTERNVL, NESTED_COPY),
    "TIE007 tied in 4, no head": (INTERNVL, NESTED),
    "TIE007 declared where only 5 looks, own head": (flagged(INTERNVL, False), NESTED_OWN),
    "TIE007 declared where only 5 looks, no head": (flagged(INTERNVL, False), NESTED),
    "TIE007 declared where only 4 looks, own head": (level(INTERNVL, "text_config", False), NESTED_OWN),
    "TIE007 declared where only 4 looks, no head": (level(INTERNVL, "text_config", True), NESTED),
    "TIE007 declared where only 4 looks, equal head": (level(INTERNVL, "text_config", True), NESTED_COPY),
    "TIE008 true then false, no head": (flagged(GEMMA3, True, text_config=False), NESTED),
    "TIE008 false then true, no head": (flagged(GEMMA3, False, text_config=True), NESTED),
    "TIE008 true then false, own head": (flagged(GEMMA3, True, text_config=False), NESTED_OWN),
    "TIE008 false then true, own head": (flagged(GEMMA3, False, text_config=True), NESTED_OWN),
    "TIE008 true then false, equal head": (flagged(GEMMA3, True, text_config=False), NESTED_COPY),
    "TIE008 null beside true": (level(flagged(GEMMA3, True), "text_config", None), NESTED),
    "TIE008 null beside false": (level(flagged(GEMMA3, False), "text_config", None), NESTED_OWN),
    "TIE008 null at the top": (level({**GEMMA3, "tie_word_embeddings": None}, "text_config", True), NESTED),
    "TIE009 flag false": (flagged(KIMI, False), llama()),
    "TIE009 quantised head": (flagged(KIMI, True), {**llama(), **CODES}),
    "TIE009 neither stored": (flagged(KIMI, True), NORM),
    "TIE010 longer, equal at first": (TIED, llama(head=np.concatenate([matrix(), matrix(1, seed=5)]))),
    "TIE010 shorter, nothing equal": (TIED, llama(head=matrix(6, seed=5))),
    "TIE010 transposed and untied": (UNTIED, llama(head=matrix().T)),
    "TIE010 transposed and tied": (TIED, llama(head=matrix().T)),
    "TIE010 guessed": (flagged(REMOTE, True), llama(head=matrix(9, seed=5))),
    "TIE010 bias": (flagged(BERT, True), bert(outer=vector(), inner=vector(6))),
    "TIE003 saved by a sequence classifier": (UNTIED, {**llama(), "score.weight": matrix(2)}),
    "TIE011 one missing": (flagged(BART, False), bart("encoder")),
    "TIE011 T5": (flagged(T5, False), T5_OWN),
    "TIE011 no copy of the shared table": (
        flagged(BART, False),
        {"model.encoder.embed_tokens.weight": matrix(), HEAD: matrix(seed=1)},
    ),
    "TIE011 a head alone": (UNTIED, {HEAD: matrix(seed=1), **NORM}),
    "TIE012 only an embedding": (REMOTE, llama()),
    "TIE012 declared untied, both stored": (flagged(REMOTE, False), OWN),
    "TIE012 declared untied, head missing": (flagged(REMOTE, False), llama()),
    "TIE012 declared tied, both stored": (flagged(REMOTE, True), COPY),
    "TIE012 no config": (None, OWN),
    "TIE012 no config, nothing known": (None, {"conv.weight": matrix()}),
    "TIE012 nothing known": (REMOTE, {"conv.weight": matrix()}),
    "TIE012 the embedding under another name": (UNTIED, {HEAD: matrix(seed=1), "wte.weight": matrix(), **NORM}),
    "TIE013 true as text": (flagged(LLAMA, "true"), llama()),
    "TIE013 false as text": (flagged(LLAMA, "False"), llama()),
    "TIE013 empty text, own head": (flagged(LLAMA, ""), OWN),
    "TIE013 text, own head": (flagged(LLAMA, "yes"), OWN),
    "TIE013 zero, copy": (flagged(LLAMA, 0), COPY),
    "TIE013 zero, no head": (flagged(LLAMA, 0), llama()),
    "TIE013 one, only the head": (flagged(LLAMA, 1), {HEAD: matrix(), **NORM}),
    "TIE013 null, own head": (flagged({**LLAMA, "tie_word_embeddings": None}), OWN),
    "TIE013 null, no head": (flagged({**LLAMA, "tie_word_embeddings": None}), llama()),
    "TIE013 two levels": (level(flagged(GEMMA3, 1), "text_config", "true"), NESTED),
    "TIE013 headless": (flagged({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, 1), llama()),
    "NUM001 untied": (UNTIED, {EMBED: with_nan(), HEAD: with_nan()}),
    "NUM001 guessed": (flagged(REMOTE, True), {EMBED: with_nan(), HEAD: with_nan()}),
    "STO002 untied": (UNTIED, llama(head=np.zeros((0, 4), "<f4"))),
    "STO002 both, untied": (UNTIED, {EMBED: np.zeros((0, 4), "<f4"), HEAD: np.zeros((0, 4), "<f4")}),
    "STO002 in a layer": (TIED, {**llama(), "model.layers.0.mlp.down_proj.weight": np.zeros(0, "<f4")}),
    "STO002 both": (TIED, {EMBED: np.zeros((0, 4), "<f4"), HEAD: np.zeros((0, 4), "<f4")}),
    "BIA001 zero, untied": (UNTIED, {**OWN, "lm_head.bias": np.zeros(8, "<f4")}),
    "BIA001 zero, broken tie": (TIED, {**OWN, "lm_head.bias": np.zeros(8, "<f4")}),
    "BIA001 values": (TIED, llama(bias=vector())),
    "BIA001 unknown class": (flagged(REMOTE, True), llama(bias=vector())),
    "BIA002 outer alone, no head": (flagged(BERT, False), bert(outer=vector())),
    "BIA002 inner alone, values": (flagged(BERT, False), bert(head=matrix(seed=1), inner=vector())),
    "BIA002 inner alone, zero": (flagged(BERT, False), bert(head=matrix(seed=1), inner=np.zeros(8, "<f4"))),
    "BIA002 outer alone, values": (flagged(BERT, False), bert(head=matrix(seed=1), outer=vector())),
    "BIA003 tied": (flagged(BERT, True), bert(outer=vector(), inner=vector(seed=1))),
    "BIA003 sign of zero": (flagged(BERT, True), bert(outer=np.zeros(8, "<f4"), inner=-np.zeros(8, "<f4"))),
    "BIA004 longer": (flagged(BERT, True), bert(outer=vector(9))),
    "BIA004 shorter": (flagged(BERT, True), bert(outer=vector(7))),
    "BIA004 untied": (flagged(BERT, False), bert(head=matrix(seed=1), outer=vector(7), inner=vector(7))),
    "BIA004 placeholder": (flagged(BERT, True), {BERT_EMBED: np.zeros((0, 4), "<f4"), OUTER_BIAS: vector(7)}),
    "BIA004 both lengths": (
        flagged(BERT, True),
        {BERT_EMBED: matrix(), BERT_HEAD: matrix(), OUTER_BIAS: vector(7), INNER_BIAS: vector(9)},
    ),
    "BIA005 both names": (flagged(BERT, False), bert(head=matrix(seed=1))),
    "BIA005 no head": (flagged(BERT, True), bert()),
    "BIA005 left without values": (
        {"architectures": ["LongformerForMaskedLM"], "model_type": "longformer", "vocab_size": 8},
        {"longformer.embeddings.word_embeddings.weight": matrix(), "lm_head.dense.weight": matrix(4)},
    ),
    "BIA005 a bias that may be absent": (BART, {"model.shared.weight": matrix(), "final_logits_other": matrix()}),
    "QNT001 both quantised": (TIED, {**EMBED_CODES, **CODES, **NORM}),
    "QNT001 by class default": (GEMMA, {**llama(), **CODES}),
    "VOC001 another width": ({**UNTIED, "hidden_size": 2 * matrix().shape[1]}, OWN),
    "VOC001 another number of key heads": (
        {**UNTIED, "num_key_value_heads": 1, "head_dim": 2},
        {**OWN, "model.layers.0.self_attn.k_proj.weight": matrix(4)},
    ),
    "VOC001 remote code with another number of key heads": (
        {**UNTIED, "num_key_value_heads": 1, "head_dim": 2, "auto_map": {}},
        {**OWN, "model.layers.0.self_attn.k_proj.weight": matrix(4)},
    ),
    "VOC001 a size as text": ({**TIED, "vocab_size": "8"}, {EMBED: matrix(), **NORM}),
    "VOC001 a boolean size": ({**UNTIED, "num_attention_heads": True}, OWN),
    "VOC001 a decimal size": ({**TIED, "vocab_size": 8.0}, {EMBED: matrix(), **NORM}),
    "VOC003 another vocabulary": ({**UNTIED, "audio_vocab_size": 2, "pad_token_id": 8}, OWN),
    "VOC003 rows that the config does not count": ({**UNTIED, "vocab_size": 10, "pad_token_id": 8}, OWN),
    "VOC003 no token is padding": ({**UNTIED, "pad_token_id": -1}, OWN),
    "VOC001 encoder and decoder": (
        {**UNTIED, "hidden_size": 9, "encoder": {"hidden_size": 4}, "decoder": {"hidden_size": 9}},
        TABLES,
    ),
    "VOC001 the width of the embedding": ({**UNTIED, "hidden_size": 9, "embedding_size": matrix().shape[1]}, TABLES),
    "VOC001 the width is in the text config": (
        {**UNTIED, "hidden_size": 9, "text_config": {"hidden_size": matrix().shape[1]}},
        TABLES,
    ),
    "VOC001 head and embedding": (UNTIED, {EMBED: matrix(10), HEAD: matrix(9, seed=1)}),
    "VOC001 the head alone": (UNTIED, {EMBED: matrix(), HEAD: matrix(9, seed=1)}),
    "VOC001 never tied": (flagged(KIMI, True), {EMBED: matrix(10), HEAD: matrix(seed=1)}),
    "VOC001 the body of a class that never ties": (
        {**KIMI, "architectures": ["KimiLinearModel"]},
        {"embed_tokens.weight": matrix(10)},
    ),
    "TIE001 the body of Udop": ({**T5, "architectures": ["UdopModel"], "model_type": "udop"}, UDOP_OWN),
    "TIE001 the encoder of Udop": ({**T5, "architectures": ["UdopEncoderModel"], "model_type": "udop"}, UDOP_OWN),
    "VOC001 another vocabulary": ({**UNTIED, "audio_vocab_size": 2}, {EMBED: matrix(10), HEAD: matrix(10, seed=1)}),
    "HED002 the head of a tied model": (TIED, {**llama(), **WEIGHT_NORM}),
    "HED002 the embedding beside a head": (TIED, {HEAD: matrix(), **EMBED_NORM}),
    "HED002 the embedding alone": (TIED, {**NORM, **EMBED_NORM}),
    "VOC001 quantised": (UNTIED, {**llama(), EMBED: matrix(10), **EMBED_CODES, **CODES}),
}
