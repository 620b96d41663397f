"""The last norm and the factors between it and the logits, for the classes where both are known.

logits = cap(s · U (γ ⊙ x̂ + β) + b) with ‖x̂‖₂ ≤ √d, for RMSNorm and LayerNorm alike. What is listed here is held against
the classes of transformers by the tests. Where a class is not listed no bound is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tieconv.analysis.tables import Array
from tieconv.checkpoint.dtypes import FLOATS
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.records import ByteReader, TensorRecord
from tieconv.inspection.numeric import FORMATS, decode
from tieconv.inspection.views import readable


@dataclass(frozen=True, slots=True)
class Final:
    """γ (d,), β (d,) or ``None``, s, and the logits' soft cap (0: none), which ends the softmax gauge.

    ``norm`` and ``shift_name`` are the names of the stored scale and shift and ``dtype`` and ``shift_dtype`` their
    types, empty where there is none; ``gain_key`` what a factor g on the columns of the head is to the scale: ``scale``
    (γ' = γ·g) or ``one_plus`` (weight' = (1 + weight)·g − 1).
    """

    gains: Array
    shift: Array | None
    scale: float
    cap: float
    norm: str
    gain_key: str
    shift_name: str = ""
    dtype: str = ""
    shift_dtype: str = ""

    @property
    def capped(self) -> bool:
        return self.cap > 0

    @property
    def offset(self) -> float:
        """What γ is more than the stored weight."""
        return 1.0 if self.gain_key == "one_plus" else 0.0


@dataclass(frozen=True, slots=True)
class _Known:
    """``norm`` is the module, ``{last}`` in it the number of the last of the layers that the config counts in
    ``layers``; nothing is known where the config does not say what is in ``needs``.
    """

    norm: str
    one_plus: bool = False
    multiply: str = ""
    divide: str = ""
    cap: str = ""
    layers: str = "decoder_layers"
    needs: tuple[tuple[str, object], ...] = ()


_LLAMA = _Known("model.norm")
_LIKE_LLAMA = (
    "llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "phimoe", "smollm3",
    "olmo2", "olmo3", "olmoe", "flex_olmo", "apertus", "arcee", "bitnet", "cwm", "diffllama", "doge", "ernie4_5",
    "ernie4_5_moe", "exaone4", "glm", "glm4", "gpt_oss", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "jetmoe",
    "seed_oss",
)  # fmt: skip
_KNOWN: Mapping[str, _Known] = {
    **dict.fromkeys(_LIKE_LLAMA, _LLAMA),
    "olmo": _Known(""),
    "stablelm": _LLAMA,
    "starcoder2": _LLAMA,
    "phi": _Known("model.final_layernorm"),
    "gemma": _Known("model.norm", one_plus=True),
    "gemma2": _Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    "gemma3_text": _Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    **dict.fromkeys(("cohere", "cohere2"), _Known("model.norm", multiply="logit_scale")),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), _Known("model.norm", divide="logits_scaling")),
    "nemotron": _Known("model.norm", one_plus=True),
    **dict.fromkeys(("jamba", "persimmon"), _Known("model.final_layernorm")),
    "lfm2": _Known("model.embedding_norm"),
    "xglm": _Known("model.layer_norm"),
    "biogpt": _Known("biogpt.layer_norm"),
    "gpt2": _Known("transformer.ln_f"),
    "gpt_neo": _Known("transformer.ln_f"),
    "gptj": _Known("transformer.ln_f"),
    "codegen": _Known("transformer.ln_f"),
    "gpt_bigcode": _Known("transformer.ln_f"),
    "falcon": _Known("transformer.ln_f"),
    "bloom": _Known("transformer.ln_f"),
    "gpt_neox": _Known("gpt_neox.final_layer_norm"),
    **dict.fromkeys(("mamba", "falcon_mamba"), _Known("backbone.norm_f")),
    "opt": _Known(
        "model.decoder.final_layer_norm", needs=(("do_layer_norm_before", True), ("_remove_final_layer_norm", False))
    ),
    **dict.fromkeys(("bert", "deberta", "deberta-v2"), _Known("cls.predictions.transform.LayerNorm")),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), _Known("lm_head.layer_norm")),
    "albert": _Known("predictions.LayerNorm"),
    "distilbert": _Known("vocab_layer_norm"),
    "electra": _Known("generator_predictions.LayerNorm"),
    "modernbert": _Known("head.norm"),
    **dict.fromkeys(("bart", "marian", "plbart"), _Known("model.decoder.layers.{last}.final_layer_norm")),
    **dict.fromkeys(("mbart", "pegasus", "m2m_100", "blenderbot"), _Known("model.decoder.layer_norm")),
}
"""By model_type: the module of the last norm, and the config keys of what follows."""
_LANGUAGE = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "MTModel")
"""How the names of the classes end whose logits the head alone makes."""


def final_norm(evidence: Inspection, reader: ByteReader, width: int) -> Final | None:
    """What stands between the last hidden state and the logits; ``None`` where that is not known."""
    config = evidence.checkpoint.config_values
    known = _KNOWN.get(str(config.get("model_type")))
    family = evidence.family
    if known is None or family.named or family.knowledge is not Knowledge.TABLE:
        return None
    if not family.architecture.endswith(_LANGUAGE) or any(
        config.get(key, value) != value for key, value in known.needs
    ):
        return None
    scale = _number(config, known.multiply, 1.0) / (_number(config, known.divide, 1.0) or 1.0)
    cap = _number(config, known.cap, 0.0)
    if not known.norm:
        return Final(np.ones(width), None, scale, cap, "", "")
    norm = known.norm.format(last=int(_number(config, known.layers, 0)) - 1)
    weight = _record(evidence, f"{norm}.weight", width)
    if weight is None:
        return None
    bias = _record(evidence, f"{norm}.bias", width)
    gains = vector(reader, weight) + (1.0 if known.one_plus else 0.0)
    key = "one_plus" if known.one_plus else "scale"
    if bias is None:
        return Final(gains, None, scale, cap, weight.name, key, dtype=weight.dtype)
    shift = vector(reader, bias)
    return Final(gains, shift, scale, cap, weight.name, key, bias.name, weight.dtype, bias.dtype)


def _number(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key, default) if key else default
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def _record(evidence: Inspection, name: str, width: int) -> TensorRecord | None:
    """A stored vector of ``width`` floats, under its name with or without the base model's prefix."""
    tensors = evidence.checkpoint.tensors
    record = tensors.get(name) or tensors.get(name.partition(".")[2])
    if record is None or record.dtype not in FLOATS or record.elements != width:
        return None
    return record


def vector(reader: ByteReader, record: TensorRecord) -> Array:
    """Every element of a small float tensor, as float64: (n,)."""
    reader, (record,) = readable(reader, (record,))
    bits = np.empty(record.elements, FORMATS[record.dtype].bits)
    if len(bits):
        reader.read_into(record.range, 0, bits.view("u1").data)
    values: Array = decode(bits, FORMATS[record.dtype]).astype("<f8")
    return values
