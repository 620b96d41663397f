"""The dtypes of torch, their storage classes, and their names in safetensors."""

from __future__ import annotations

from tieconv.formats.torch.pickle.values import (
    Dtype,
)

DTYPES = {
    "bool": Dtype("BOOL", 1), "uint8": Dtype("U8", 1), "int8": Dtype("I8", 1),
    "int16": Dtype("I16", 2), "int32": Dtype("I32", 4), "int64": Dtype("I64", 8),
    "uint16": Dtype("U16", 2), "uint32": Dtype("U32", 4), "uint64": Dtype("U64", 8),
    "float16": Dtype("F16", 2), "bfloat16": Dtype("BF16", 2), "float32": Dtype("F32", 4), "float64": Dtype("F64", 8),
    "complex32": Dtype("C32", 4), "complex64": Dtype("C64", 8), "complex128": Dtype("C128", 16),
    "float8_e4m3fn": Dtype("F8_E4M3", 1), "float8_e4m3fnuz": Dtype("F8_E4M3FNUZ", 1),
    "float8_e5m2": Dtype("F8_E5M2", 1), "float8_e5m2fnuz": Dtype("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": Dtype("F8_E8M0", 1), "float4_e2m1fn_x2": Dtype("F4_E2M1X2", 1),
}  # fmt: skip
"""The dtypes by torch's name. safetensors has no C32, C128 and F4_E2M1X2, so such tensors are kept as bytes."""

CLASSES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
BYTES = Dtype("U8", 1)

TORCH_NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
"""Maps dtype names of records to dtype names of torch."""
STORAGE_CLASSES = {DTYPES[name].name: f"{word}Storage" for word, name in CLASSES.items()}
"""Maps dtype names of records to torch's storage classes, if the dtype has one."""
WIDTHS = {dtype.name: dtype.width for dtype in DTYPES.values()}
"""Maps dtype names of records to bytes of an element."""
