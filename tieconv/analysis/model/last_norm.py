"""The last norm and the factors between it and the logits, for the classes with a known last norm.

logits = cap(s · U (γ ⊙ x̂ + β) + b) with ‖x̂‖₂ ≤ √d, for both RMSNorm and LayerNorm. The tests compare this list with the
classes of transformers. tieconv claims no bound for a class that is not listed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tieconv.analysis.certificate.config_values import WithheldError, class_values, number
from tieconv.analysis.model.tables import Array
from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record
from tieconv.inspection.numeric.bits import FORMATS, decode
from tieconv.inspection.view_reader import readable


@record
class Final:
    """γ (d,), β (d,) or ``None``, s, and the soft cap of the logits, 0 for none.

    ``norm`` and ``shift_name`` are the names of the stored scale and shift, ``dtype`` and ``shift_dtype`` their types.
    They are empty if the norm has none. ``gain_key`` says how a factor g on the head's columns changes the scale.
    ``scale`` means γ' = γ·g, and ``one_plus`` means weight' = (1 + weight)·g − 1.
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
        """The difference of γ and the stored weight."""
        return 1.0 if self.gain_key == "one_plus" else 0.0


@record
class Known:
    """The last norm of a class. ``norm`` is the module.

    ``{last}`` in it is the number of the last layer, counted by the config key ``layers``. `class_values` gives the
    measured config keys that decide whether the entry applies.
    """

    norm: str
    one_plus: bool = False
    multiply: str = ""
    divide: str = ""
    cap: str = ""
    layers: str = "decoder_layers"


_LLAMA = Known("model.norm")
_LIKE_LLAMA = (
    "llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "phimoe", "smollm3",
    "olmo2", "olmo3", "olmoe", "flex_olmo", "apertus", "arcee", "bitnet", "cwm", "diffllama", "doge", "ernie4_5",
    "ernie4_5_moe", "exaone4", "glm", "glm4", "gpt_oss", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "jetmoe",
    "seed_oss",
)  # fmt: skip
KNOWN: Mapping[str, Known] = {
    **dict.fromkeys(_LIKE_LLAMA, _LLAMA),
    "olmo": Known(""),
    "stablelm": _LLAMA,
    "starcoder2": _LLAMA,
    "phi": Known("model.final_layernorm"),
    "gemma": Known("model.norm", one_plus=True),
    "gemma2": Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    "gemma3_text": Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    **dict.fromkeys(("cohere", "cohere2"), Known("model.norm", multiply="logit_scale")),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), Known("model.norm", divide="logits_scaling")),
    "nemotron": Known("model.norm", one_plus=True),
    **dict.fromkeys(("jamba", "persimmon"), Known("model.final_layernorm")),
    "lfm2": Known("model.embedding_norm"),
    "xglm": Known("model.layer_norm"),
    "biogpt": Known("biogpt.layer_norm"),
    "gpt2": Known("transformer.ln_f"),
    "gpt_neo": Known("transformer.ln_f"),
    "gptj": Known("transformer.ln_f"),
    "codegen": Known("transformer.ln_f"),
    "gpt_bigcode": Known("transformer.ln_f"),
    "falcon": Known("transformer.ln_f"),
    "bloom": Known("transformer.ln_f"),
    "gpt_neox": Known("gpt_neox.final_layer_norm"),
    **dict.fromkeys(("mamba", "falcon_mamba"), Known("backbone.norm_f")),
    "opt": Known("model.decoder.final_layer_norm"),
    **dict.fromkeys(("bert", "deberta", "deberta-v2"), Known("cls.predictions.transform.LayerNorm")),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), Known("lm_head.layer_norm")),
    "albert": Known("predictions.LayerNorm"),
    "distilbert": Known("vocab_layer_norm"),
    "electra": Known("generator_predictions.LayerNorm"),
    "modernbert": Known("head.norm"),
    **dict.fromkeys(("bart", "marian", "plbart"), Known("model.decoder.layers.{last}.final_layer_norm")),
    **dict.fromkeys(("mbart", "pegasus", "m2m_100", "blenderbot"), Known("model.decoder.layer_norm")),
}
"""By model_type: the module of the last norm, and the config keys of the factors after it."""


def final_norm(evidence: Inspection, reader: ByteReader, width: int) -> Final:
    """Return the last norm and the factors before the logits. Raises `WithheldError` if they are unknown."""
    known = KNOWN.get(str(evidence.checkpoint.config_values.get("model_type")))
    if known is None:
        raise WithheldError("the factors between the last norm and the logits of this class are unknown")
    layers = known.layers if "{last}" in known.norm else ""
    values = class_values(evidence, tuple(filter(None, (known.multiply, known.divide, known.cap, layers))))
    scale, cap = _scale(known, values), _cap(known, values)
    if not known.norm:
        return Final(np.ones(width), None, scale, cap, "", "")
    norm = known.norm.format(last=int(number(values, layers, 0)) - 1)
    weight = _record(evidence, f"{norm}.weight", width)
    if weight is None:
        raise WithheldError(f"{norm}.weight is not stored as {width:,} floats")
    bias = _record(evidence, f"{norm}.bias", width)
    gains = vector(reader, weight) + (1.0 if known.one_plus else 0.0)
    key = "one_plus" if known.one_plus else "scale"
    if bias is None:
        return Final(gains, None, scale, cap, weight.name, key, dtype=weight.dtype)
    shift = vector(reader, bias)
    return Final(gains, shift, scale, cap, weight.name, key, bias.name, weight.dtype, bias.dtype)


def _scale(known: Known, values: Mapping[str, object]) -> float:
    """Return the factor of the logits."""
    divisor = number(values, known.divide, 1.0)
    if not divisor:
        raise WithheldError(f"{known.divide} is 0, and the logits are divided by it")
    return number(values, known.multiply, 1.0) / divisor


def _cap(known: Known, values: Mapping[str, object]) -> float:
    """Return the soft cap of the logits, or 0 for none (also ``null`` in the config)."""
    if not known.cap or values[known.cap] is None:
        return 0.0
    cap = number(values, known.cap, 0.0)
    if cap <= 0:
        raise WithheldError(f"{known.cap} is {cap:g}, but a cap must be greater than 0")
    return cap


def _record(evidence: Inspection, name: str, width: int) -> TensorRecord | None:
    """Return a stored vector of ``width`` floats, with or without the base model's prefix, or ``None``."""
    tensors = evidence.checkpoint.tensors
    record = tensors.get(name) or tensors.get(name.partition(".")[2])
    if record is None or record.dtype not in FLOATS or record.elements != width:
        return None
    return record


def vector(reader: ByteReader, record: TensorRecord) -> Array:
    """Return every element of a small float tensor as float64: (n,)."""
    reader, (record,) = readable(reader, (record,))
    bits = np.empty(record.elements, FORMATS[record.dtype].bits)
    if len(bits):
        reader.read_into(record.range, 0, bits.view("u1").data)
    values: Array = decode(bits, FORMATS[record.dtype]).astype("<f8")
    return values
