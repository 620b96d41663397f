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
    norm: str
    one_plus: bool = False
    multiply: str = ""
    divide: str = ""
    cap: str = ""


_LLAMA = _Known("model.norm")
_KNOWN: Mapping[str, _Known] = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "smollm3", "olmo2"), _LLAMA
    ),
    "olmo": _Known(""),
    "stablelm": _LLAMA,
    "starcoder2": _LLAMA,
    "phi": _Known("model.final_layernorm"),
    "gemma": _Known("model.norm", one_plus=True),
    "gemma2": _Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    "gemma3_text": _Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    "cohere": _Known("model.norm", multiply="logit_scale"),
    "granite": _Known("model.norm", divide="logits_scaling"),
    "gpt2": _Known("transformer.ln_f"),
    "gpt_neo": _Known("transformer.ln_f"),
    "gptj": _Known("transformer.ln_f"),
    "codegen": _Known("transformer.ln_f"),
    "gpt_bigcode": _Known("transformer.ln_f"),
    "falcon": _Known("transformer.ln_f"),
    "bloom": _Known("transformer.ln_f"),
    "gpt_neox": _Known("gpt_neox.final_layer_norm"),
    "mamba": _Known("backbone.norm_f"),
}
"""By model_type: the module of the last norm, and the config keys of what follows."""


def final_norm(evidence: Inspection, reader: ByteReader, width: int) -> Final | None:
    """What stands between the last hidden state and the logits; ``None`` where that is not known."""
    config = evidence.checkpoint.config_values
    known = _KNOWN.get(str(config.get("model_type")))
    family = evidence.family
    if known is None or family.named or family.knowledge is not Knowledge.TABLE:
        return None
    if not family.architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    scale = _number(config, known.multiply, 1.0) / (_number(config, known.divide, 1.0) or 1.0)
    cap = _number(config, known.cap, 0.0)
    if not known.norm:
        return Final(np.ones(width), None, scale, cap, "", "")
    weight = _record(evidence, f"{known.norm}.weight", width)
    if weight is None:
        return None
    bias = _record(evidence, f"{known.norm}.bias", width)
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
