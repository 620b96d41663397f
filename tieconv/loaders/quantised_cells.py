"""What each loader was seen to do with a quantised embedding or head, by scheme, flag and the two tables.

Each cell was run with a tiny Llama, in vLLM and onnxruntime-genai also with Qwen 2. The releases are transformers
5.23.0, vLLM 0.28.0 and 0.32.0, mlx-lm 0.32.2, onnxruntime-genai 0.18.0, and llama.cpp of llama-cpp-python 0.3.36. A
combination without a cell is unknown. The first cell that fits is the answer. A pair without codes is one whose head
the config lists as quantised all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint.finding import Outcome
from tieconv.checkpoint.value_type import record

FLOAT, QUANTISED, ABSENT = "float", "quantised", "absent"

Tables = tuple[str, str]
"""The embedding and the head, each `FLOAT`, `QUANTISED` or `ABSENT`."""


@record
class Cell:
    """One measured combination. ``None`` fits every value.

    ``named`` says whether the config lists the head by its own name, not by a class such as Linear. ``head_listed``
    says whether it lists the head at all, also if no codes are stored for it. ``classes`` are the architectures that
    were run; an empty tuple fits every class. The ``outcome`` `None` is that of the same model without quantisation.
    """

    loader: tuple[str, str]
    schemes: tuple[str, ...]
    outcome: Outcome | None
    says: str
    tied: bool | None = None
    tables: tuple[Tables, ...] = ()
    named: bool | None = None
    head_listed: bool | None = None
    left_out: bool | None = None
    symmetric: bool | None = None
    bits: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()


TRANSFORMERS, VLLM_028, VLLM = ("transformers", "5.x"), ("vllm", "<0.29"), ("vllm", ">=0.29")
LLAMA_CPP, MLX = ("llama.cpp", "2026"), ("mlx-lm", "0.32")
GENAI = ("onnxruntime-genai", "0.18")

_PACKED = ("compressed-tensors pack-quantized",)
_FOUR_BIT = ("compressed-tensors nvfp4-pack", "compressed-tensors mxfp4-pack")
_FLOAT8 = ("compressed-tensors float-quantized",)
_GPTQ, _AWQ = ("GPTQ v1", "GPTQ v2"), ("AWQ",)
_BITSANDBYTES = ("bitsandbytes 4 bit", "bitsandbytes 8 bit")
_FP8 = ("FP8 with weight_scale_inv",)
_MLX = ("MLX affine", "MLX nvfp4", "MLX mxfp4", "MLX mxfp8")

_FQ, _Q0, _QQ, _QF = (FLOAT, QUANTISED), (QUANTISED, ABSENT), (QUANTISED, QUANTISED), (QUANTISED, FLOAT)
_ANY_EMBEDDING = (_Q0, _QQ, _QF)
_FF, _F0 = (FLOAT, FLOAT), (FLOAT, ABSENT)
_LLAMA, _QWEN = ("LlamaForCausalLM",), ("Qwen2ForCausalLM",)

_NAMES_WEIGHT = "transformers fails to load it: it looks for a tensor named .weight in a quantised"
_READS_BLOCKS = "transformers reads GPTQ and AWQ codes only inside the blocks"
_OWN_CODES = "the head uses its own quantised codes"


def _transformers() -> Iterator[Cell]:
    here, packed = TRANSFORMERS, (*_PACKED, *_FOUR_BIT)
    error, random, untied = Outcome.ERROR, Outcome.RANDOM, Outcome.UNTIED
    yield from _codes_and_config_differ()
    yield Cell(here, packed, error, f"{_NAMES_WEIGHT} embedding", None, _ANY_EMBEDDING)
    yield Cell(here, packed, error, f"{_NAMES_WEIGHT} head of a tied model", True, (_FQ,))
    yield Cell(here, packed, untied, _OWN_CODES, False, (_FQ,))
    # transformers refuses the FP8 embeddings of llm-compressor 0.14, and loads others: no claim.
    yield Cell(here, _FLOAT8, untied, _OWN_CODES, False, (_FQ,))
    absent = "the head is not stored and starts with random numbers"
    yield Cell(here, _FLOAT8, random, absent, False, (_Q0,), head_listed=False)
    no_draw = "transformers fails: it cannot draw random FP8 codes for the head, which is not stored"
    yield Cell(here, _FLOAT8, error, no_draw, False, (_Q0,), head_listed=True)
    mixed = "transformers fails in the forward pass: it compares FP8 codes with floats"
    yield Cell(here, _FLOAT8, error, mixed, True, (_FQ, _QF))
    yield Cell(here, _FLOAT8, untied, _OWN_CODES, True, (_QQ,))
    lost = "transformers ties the codes but not lm_head.weight_scale, so the logits are wrong"
    yield Cell(here, _FLOAT8, random, lost, True, (_Q0,), head_listed=True)
    yield Cell(here, _FLOAT8, error, mixed, True, (_Q0,), head_listed=False)
    looked_up = "transformers fails when it looks up a row of a tied int8 embedding"
    yield Cell(here, ("compressed-tensors int-quantized",), error, looked_up, True, (_Q0,))
    used_twice = f"{_READS_BLOCKS}, and uses the head as the embedding"
    yield Cell(here, (*_GPTQ, *_AWQ), Outcome.DISCARDED, used_twice, True, (_QF,))
    yield Cell(
        here,
        (*_GPTQ, *_AWQ),
        random,
        f"{_READS_BLOCKS}, so the embedding starts with random numbers",
        None,
        _ANY_EMBEDDING,
    )
    yield Cell(
        here, (*_GPTQ, *_AWQ), Outcome.DISCARDED, f"{_READS_BLOCKS}, and uses the embedding as the head", True, (_FQ,)
    )
    yield Cell(here, (*_GPTQ, *_AWQ), random, f"{_READS_BLOCKS}, so the head starts with random numbers", False, (_FQ,))
    skipped = "the config leaves the head out of the quantisation, but the file stores codes for it"
    yield Cell(here, _BITSANDBYTES, error, f"transformers fails: {skipped}", None, (_FQ,), left_out=True)
    yield Cell(here, _BITSANDBYTES, untied, _OWN_CODES, None, (_FQ,), left_out=False)
    shapes = "transformers fails: the codes do not have the shape of a float table"
    yield Cell(here, _BITSANDBYTES[:1], error, shapes, None, _ANY_EMBEDDING)
    yield Cell(here, _MLX, error, shapes, None, (_FQ, *_ANY_EMBEDDING))


def _codes_and_config_differ() -> Iterator[Cell]:
    """Yield what transformers does if the config lists a float head, or leaves out a head with codes."""
    here, error, random = TRANSFORMERS, Outcome.ERROR, Outcome.RANDOM
    yield Cell(here, _PACKED, error, f"{_NAMES_WEIGHT} head of a tied model", True, (_FF, _F0))
    builds = "transformers builds a quantised head and finds no codes: it fails or computes noise"
    yield Cell(here, _PACKED, random, builds, False, (_FF, _F0))
    ignored = "the config leaves the head out, so transformers ignores its codes"
    used = f"{ignored} and uses the embedding as the head"
    yield Cell(here, _PACKED, Outcome.DISCARDED, used, True, (_FQ,), left_out=True)
    yield Cell(here, _PACKED, random, f"{ignored}: it starts with random numbers", False, (_FQ,), left_out=True)
    yield Cell(here, _FLOAT8, random, "the config leaves the head out, so its codes have no scale", None, (_FQ,),
               left_out=True)  # fmt: skip
    yield Cell(here, _FLOAT8, error, "transformers fails: it compares FP8 codes with floats", True, (_FF,))
    yield Cell(here, _FLOAT8, random, "transformers builds an FP8 head, which has no scale", True, (_F0,))
    yield Cell(here, _FLOAT8, random, "transformers builds an FP8 head and finds no scale", False, (_FF,))
    no_draw = "transformers fails: it cannot draw random FP8 codes for the head, which is not stored"
    yield Cell(here, _FLOAT8, error, no_draw, False, (_F0,))
    no_state = "transformers builds a quantised head and finds no codes: it fails"
    yield Cell(here, _BITSANDBYTES, error, no_state, None, (_FF, _F0))
    yield Cell(here, (*_GPTQ, *_AWQ), None, _READS_BLOCKS, None, (_FF, _F0))
    not_numbers = "transformers builds a quantised head and finds no codes: every logit is not a number"
    yield Cell(here, ("AutoRound",), random, not_numbers, False, (_FF,), bits=(4,))


def _vllm() -> Iterator[Cell]:
    error, random, untied = Outcome.ERROR, Outcome.RANDOM, Outcome.UNTIED
    both, loaders = (*_LLAMA, *_QWEN), (VLLM_028, VLLM)
    memory = "the head keeps uninitialised memory, without a message"
    for here in loaders:
        quantised = "vLLM fails to load a tied model with a quantised embedding"
        yield Cell(here, _PACKED, error, quantised, True, (_Q0, _QQ), classes=both)
        unnamed = "vLLM fails: the target Linear does not match the head, so it has no parameter for the codes"
        yield Cell(here, _PACKED, untied, _OWN_CODES, False, (_FQ,), True, classes=both)
        yield Cell(here, _PACKED, error, unnamed, False, (_FQ,), False, classes=both)
        yield Cell(here, _PACKED, error, unnamed, False, (_QQ,), False, classes=_QWEN)
        yield Cell(here, _PACKED, untied, "both use their own quantised codes", False, (_QQ,), True, classes=_QWEN)
        yield Cell(
            here, _PACKED, error, "vLLM's Llama fails to load a quantised embedding", False, (_QQ,), classes=_LLAMA
        )
        yield Cell(here, _GPTQ, error, "vLLM fails to load a GPTQ embedding", None, _ANY_EMBEDDING, classes=both)
        llama = "vLLM's Llama fails to load a quantised embedding"
        yield Cell(here, _PACKED, error, llama, False, (_Q0, _QF), True, classes=_LLAMA)
        yield Cell(here, _AWQ, error, "vLLM fails to load an AWQ embedding", None, _ANY_EMBEDDING, classes=both)
        yield Cell(here, (*_PACKED, *_AWQ), random, memory, None, (_F0,), True, classes=both)
        yield Cell(here, _PACKED, None, "vLLM builds a float head", None, (_FF, _F0), False, classes=both)
        yield Cell(here, (*_GPTQ, *_AWQ), None, "vLLM builds a float head", None, (_FF, _F0), classes=both)
        asymmetric = "vLLM refuses asymmetric GPTQ"
        yield Cell(here, _GPTQ, error, asymmetric, None, (_FQ,), symmetric=False, bits=(4,), classes=both)
    dropped = "vLLM ties the embedding and drops the codes of the head, without a message"
    yield Cell(VLLM_028, _PACKED, Outcome.DISCARDED, dropped, True, (_FQ,), False, classes=both)
    yield Cell(VLLM_028, _PACKED, random, memory, True, (_FQ,), True, classes=both)
    yield Cell(VLLM_028, _PACKED, error, "vLLM fails to load a quantised embedding", True, (_QF,), classes=both)
    yield Cell(VLLM_028, _GPTQ, random, memory, True, (_FQ,), True, symmetric=True, classes=both)
    listed = "vLLM builds a quantised head, and finds no parameter for lm_head.weight"
    yield Cell(VLLM_028, _PACKED, random, memory, True, (_FF,), True, classes=both)
    yield Cell(VLLM_028, _PACKED, error, listed, False, (_FF,), True, classes=both)
    yield Cell(VLLM, _PACKED, error, listed, None, (_FF,), True, classes=both)
    yield Cell(VLLM_028, (*_GPTQ, *_AWQ), Outcome.DISCARDED, dropped, True, (_FQ,), False, classes=both)
    unlisted = 'vLLM fails: quantization_config has no "lm_head": true'
    yield Cell(VLLM_028, (*_GPTQ, *_AWQ), error, unlisted, False, (_FQ,), False, classes=both)
    yield Cell(VLLM_028, _AWQ, random, memory, True, (_FQ,), True, classes=both)
    yield Cell(VLLM_028, (*_GPTQ, *_AWQ), untied, _OWN_CODES, False, (_FQ,), True, classes=both)
    yield Cell(VLLM, _PACKED, error, "vLLM's Llama fails to load a quantised embedding", True, (_QF,), True,
               classes=_LLAMA)  # fmt: skip
    yield Cell(VLLM, _PACKED, error, "vLLM fails: it finds no lm_head.weight_packed", True, (_FQ,), False, classes=both)
    yield Cell(VLLM, _PACKED, untied, _OWN_CODES, True, (_FQ,), True, classes=both)
    yield Cell(VLLM, _GPTQ, untied, _OWN_CODES, None, (_FQ,), True, symmetric=True, classes=both)
    yield Cell(VLLM, _AWQ, untied, _OWN_CODES, None, (_FQ,), True, classes=both)
    yield Cell(VLLM, (*_GPTQ, *_AWQ), error, unlisted, None, (_FQ,), False, classes=both)


def _mlx() -> Iterator[Cell]:
    """Yield what mlx-lm does with the codes of other programs. For its own, the model class decides."""
    received = "mlx-lm fails: a tied model has no parameters for the codes of the head"
    yield Cell(MLX, _AWQ, Outcome.ERROR, received, True, (_FQ, _QQ))
    yield Cell(MLX, _AWQ, Outcome.UNTIED, _OWN_CODES, False, (_FQ,))
    yield Cell(MLX, _AWQ, Outcome.TIED, "one quantised matrix serves both", True, (_Q0,))
    yield Cell(MLX, _AWQ, Outcome.DISCARDED, "mlx-lm drops the stored head without a message", True, (_QF,))
    yield Cell(MLX, _AWQ, Outcome.ERROR, "mlx-lm fails: the head is not stored", False, (_Q0,))
    yield Cell(MLX, _AWQ, Outcome.UNTIED, "each table is loaded as it is stored", False, (_QF, _QQ))
    yield Cell(MLX, (*_PACKED, *_AWQ), None, "mlx-lm looks for stored codes", None, (_FF, _F0))
    yield Cell(MLX, _PACKED, Outcome.ERROR, "mlx-lm does not read codes of compressed-tensors")
    yield Cell(MLX, _FLOAT8, Outcome.ERROR, "mlx-lm does not read the format float-quantized")
    yield Cell(MLX, _GPTQ, Outcome.ERROR, "mlx-lm refuses the g_idx of GPTQ")


def _llama_cpp() -> Iterator[Cell]:
    refused = "llama.cpp's converter does not read"
    yield Cell(LLAMA_CPP, _AWQ, Outcome.ERROR, f"{refused} AWQ")
    yield Cell(LLAMA_CPP, _BITSANDBYTES, Outcome.ERROR, f"{refused} bitsandbytes")
    yield Cell(LLAMA_CPP, (_FOUR_BIT[1],), Outcome.ERROR, f"{refused} mxfp4 of compressed-tensors")
    nvfp4 = "the converter writes a GGUF file that llama.cpp does not load"
    yield Cell(LLAMA_CPP, (_FOUR_BIT[0],), Outcome.ERROR, nvfp4, True, (_Q0,))
    ties = "the converter writes the dequantised embedding, and llama.cpp uses it for both"
    for schemes, bits in ((_PACKED, (4,)), (_FLOAT8, ()), (_GPTQ, ()), (_FP8, ())):
        yield Cell(LLAMA_CPP, schemes, Outcome.TIED, ties, None, (_Q0,), bits=bits, classes=_LLAMA)
        writes = "the converter writes both tables, dequantised"
        yield Cell(LLAMA_CPP, schemes, Outcome.UNTIED, writes, None, (_FQ, _QQ, _QF), bits=bits, classes=_LLAMA)


def _genai() -> Iterator[Cell]:
    """Yield what the builder makes with ``-p int4``. The engine answers for the other methods, from the config."""
    coded, ran = (*_GPTQ, *_AWQ), (*_LLAMA, *_QWEN)
    embedding = "the builder does not know the codes of a quantised embedding"
    yield Cell(GENAI, coded, Outcome.ERROR, embedding, None, _ANY_EMBEDDING, classes=ran)
    rank = "ONNX Runtime refuses the graph: the embedding reads the head's codes, and their scales have another rank"
    yield Cell(GENAI, coded, Outcome.ERROR, rank, True, (_FQ,), classes=ran)
    yield Cell(GENAI, coded, Outcome.UNTIED, _OWN_CODES, False, (_FQ,), classes=ran)
    yield Cell(GENAI, coded, None, "the builder rounds a float table to 4 bits", None, (_FF, _F0), classes=ran)
    shapes = "the builder loads with transformers, which fails: the codes of MLX do not have the shapes of floats"
    yield Cell(GENAI, _MLX, Outcome.ERROR, shapes, None, (_FQ, *_ANY_EMBEDDING))


def _by_loader() -> Mapping[tuple[str, str], tuple[Cell, ...]]:
    cells: dict[tuple[str, str], list[Cell]] = {}
    for cell in (*_transformers(), *_vllm(), *_mlx(), *_llama_cpp(), *_genai()):
        cells.setdefault(cell.loader, []).append(cell)
    return {loader: tuple(listed) for loader, listed in cells.items()}


CELLS = _by_loader()
"""The cells of each loader, by name and version."""
