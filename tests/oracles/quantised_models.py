"""Tiny Llamas whose embedding and head are float, quantised or absent, in each scheme and under each tie flag."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.inspection.quantised.stored_models import values as dequantised
from tests.lazy import save_file, torch, transformers as tr
from tests.oracles.tokenizer import write_tokenizer
from tieconv import inspect
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD
from tieconv.sources.local import open_files

ROWS, WIDTH, GROUP = 128, 64, 32
NAMES = {EMBEDDING: "model.embed_tokens", HEAD: "lm_head"}
PAIRS = (("float", "quantised"), ("quantised", "absent"), ("quantised", "quantised"), ("quantised", "float"),
         ("quantised", "dropped"), ("float", "listed"), ("float", "dropped"), ("float", "left-out"))  # fmt: skip
"""How embedding and head are stored. The config lists a head that is `quantised`, that was `dropped` and is absent, or
that is float and `listed`. It does not list one that is `absent`, or that is quantised and `left-out`."""
GONE = ("absent", "dropped")
Tensors = "dict[str, torch.Tensor]"
Config = dict[str, Any]
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _words(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=_random(seed)).to(torch.int32)


def _scales(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=_random(seed)) * 0.05 + 0.01


def packed(seed: int) -> Tensors:
    """Codes of 4 bits as compressed-tensors packs them."""
    codes, scales = _words(seed, ROWS, WIDTH // 8), _scales(seed, ROWS, WIDTH // GROUP)
    return {"weight_packed": codes, "weight_scale": scales, "weight_shape": torch.tensor([ROWS, WIDTH])}


def gptq(seed: int, rows: int = ROWS) -> Tensors:
    """Symmetric codes of 4 bits as GPTQ v1 packs them."""
    groups = WIDTH // GROUP
    return {
        "qweight": _words(seed, WIDTH // 8, rows),
        "qzeros": torch.full((groups, rows // 8), 0x77777777, dtype=torch.int32),
        "scales": _scales(seed, groups, rows).half(),
        "g_idx": (torch.arange(WIDTH) // GROUP).int(),
    }


def awq(seed: int, rows: int = ROWS) -> Tensors:
    """Codes of 4 bits as AWQ packs them."""
    groups = WIDTH // GROUP
    return {
        "qweight": _words(seed, WIDTH, rows // 8),
        "qzeros": _words(seed + 10, groups, rows // 8),
        "scales": _scales(seed, groups, rows).half(),
    }


def fp8(seed: int) -> Tensors:
    """Codes of F8_E4M3 with a scale a row, as compressed-tensors stores them."""
    codes = torch.randn(ROWS, WIDTH, generator=_random(seed)).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": _scales(seed, ROWS, 1)}


def block_fp8(seed: int) -> Tensors:
    """Codes of F8_E4M3 with a scale for each block."""
    codes = torch.randn(ROWS, WIDTH, generator=_random(seed)).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": _scales(seed, ROWS // GROUP, WIDTH // GROUP)}


def bitsandbytes4(seed: int) -> Tensors:
    """Codes of nf4 with a scale for 64 elements."""
    state = {"blocksize": 64, "dtype": "float32", "quant_type": "nf4", "shape": [ROWS, WIDTH]}
    return {
        "weight": torch.randint(0, 256, (ROWS * WIDTH // 2, 1), generator=_random(seed)).to(torch.uint8),
        "weight.absmax": _scales(seed, ROWS * WIDTH // 64),
        "weight.quant_map": torch.tensor(NF4),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }


def bitsandbytes8(seed: int) -> Tensors:
    """Codes of 8 bits with a scale a row."""
    codes = torch.randint(-127, 128, (ROWS, WIDTH), generator=_random(seed)).to(torch.int8)
    return {"weight": codes, "SCB": _scales(seed, ROWS), "weight_format": torch.tensor(0, dtype=torch.uint8)}


def mlx(seed: int) -> Tensors:
    """Codes of 4 bits with scales and biases, as MLX packs them."""
    return {
        "weight": _words(seed, ROWS, WIDTH // 8).view(torch.uint32),
        "scales": _scales(seed, ROWS, WIDTH // GROUP).half(),
        "biases": -_scales(seed + 10, ROWS, WIDTH // GROUP).half(),
    }


def _compressed(form: str, weights: Config, roles: list[str]) -> Config:
    targets = [rf"re:.*{NAMES[role].rpartition('.')[2]}$" for role in roles] or ["re:.*nothing$"]
    group = {"targets": targets, "weights": weights}
    settings = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": []}
    return {**settings, "format": form, "config_groups": {"g": {**group, "format": form}}}


def _packed_config(roles: list[str]) -> Config:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
    return _compressed("pack-quantized", weights, roles)


def _by_class_config(roles: list[str]) -> Config:
    """As `_packed_config`, with the classes as targets; a head that is not quantised is in ``ignore``."""
    settings = _packed_config(roles)
    settings["config_groups"]["g"]["targets"] = ["Linear", "Embedding"] if EMBEDDING in roles else ["Linear"]
    return settings | {"ignore": [f"re:{BLOCK}.*", *(["lm_head"] if HEAD not in roles else [])]}


def _fp8_config(roles: list[str]) -> Config:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    return _compressed("float-quantized", weights, roles)


def _gptq_config(roles: list[str]) -> Config:
    return {
        "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False,
        "checkpoint_format": "gptq", "lm_head": HEAD in roles, "backend": "torch",
    }  # fmt: skip


def _awq_config(roles: list[str]) -> Config:
    return {
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
        "lm_head": HEAD in roles,
    }  # fmt: skip


BLOCK = "model.layers.0"


def _block_fp8_config(roles: list[str]) -> Config:
    skipped = [BLOCK, *(["lm_head"] if HEAD not in roles else [])]
    return {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [GROUP, GROUP],
        "modules_to_not_convert": skipped, "dequantize": True,
    }  # fmt: skip


def _bitsandbytes_config(bits: int) -> Callable[[list[str]], Config]:
    def config(roles: list[str]) -> Config:
        skipped = [BLOCK, *(["lm_head"] if HEAD not in roles else [])]
        kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "float32"} if bits == 4 else {}
        return {"quant_method": "bitsandbytes", f"load_in_{bits}bit": True, "llm_int8_skip_modules": skipped, **kind}

    return config


def _mlx_config(roles: list[str]) -> Config:
    return {"group_size": GROUP, "bits": 4, "mode": "affine"}


SCHEMES: dict[str, tuple[Callable[[int], Tensors], Callable[[list[str]], Config]]] = {
    "packed": (packed, _packed_config),
    "by-class": (packed, _by_class_config),
    "fp8": (fp8, _fp8_config),
    "gptq": (gptq, _gptq_config),
    "awq": (awq, _awq_config),
    "block-fp8": (block_fp8, _block_fp8_config),
    "bnb4": (bitsandbytes4, _bitsandbytes_config(4)),
    "bnb8": (bitsandbytes8, _bitsandbytes_config(8)),
    "mlx": (mlx, _mlx_config),
}


IN_LAYERS = {"gptq": gptq, "awq": awq}
"""The schemes whose loaders expect codes in every layer."""


def _quantised_body(body: Tensors, make: Callable[[int, int], Tensors]) -> Tensors:
    """Return the layers between the tables, with codes: each matrix there is WIDTH×WIDTH."""
    tensors: Tensors = {}
    for seed, (name, value) in enumerate(body.items()):
        module, _, leaf = name.rpartition(".")
        coded = leaf == "weight" and value.dim() == 2
        tensors |= {f"{module}.{part}": codes for part, codes in make(seed, WIDTH).items()} if coded else {name: value}
    return tensors


def checkpoints(folder: Path, schemes: list[str], kinds: list[str]) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """Write each combination: its name, its directory, and how each table is stored."""
    for kind in kinds:
        torch.manual_seed(0)
        config = getattr(tr, f"{kind}Config")(
            vocab_size=ROWS, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=1,
            eos_token_id=2,
        )  # fmt: skip
        config.architectures = [f"{kind}ForCausalLM"]
        body = dict(getattr(tr, config.architectures[0])(config).state_dict())
        tables = {role: body.pop(f"{module}.weight") for role, module in NAMES.items()}
        for scheme in schemes:
            make, describe = SCHEMES[scheme]
            layers = _quantised_body(body, IN_LAYERS[scheme]) if scheme in IN_LAYERS else body
            for tied in (True, False):
                for pair in PAIRS:
                    stored = dict(zip(NAMES, pair, strict=True))
                    tensors = dict(layers)
                    for seed, (role, form) in enumerate(stored.items()):
                        floats = {"weight": tables[role]}
                        codes = make(seed)
                        forms = {"quantised": codes, "left-out": codes, "float": floats, "listed": floats}
                        parts = forms.get(form, {})
                        tensors |= {f"{NAMES[role]}.{leaf}": value.contiguous() for leaf, value in parts.items()}
                    name = f"{kind} {scheme} {'tied' if tied else 'untied'} {pair[0]}+{pair[1]}"
                    target = folder / name.replace(" ", "-")
                    roles = [role for role, form in stored.items() if form in ("quantised", "dropped", "listed")]
                    config.tie_word_embeddings = tied
                    key = "quantization" if scheme == "mlx" else "quantization_config"
                    _save(config, target, key, describe(roles))
                    save_file(tensors, target / "model.safetensors", {"format": "pt"})
                    write_tokenizer(target, ROWS)
                    yield name, target, stored


def _save(config: Any, folder: Path, key: str, settings: Config) -> None:
    config.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: settings}))


def reference(folder: Path, stored: dict[str, str], path: Path) -> None:
    """Write the float values of the stored tables, under the names that `observe` compares with."""
    inspection = inspect(folder)
    values: dict[str, Any] = {}
    with open_files(str(folder)) as files:
        for role, letter in ((EMBEDDING, "E"), (HEAD, "H")):
            if stored[role] in ("quantised", "left-out"):
                values[f"table {letter}"] = dequantised(folder, role).astype("f4")
            elif stored[role] in ("float", "listed"):
                record = inspection.checkpoint.tensors[f"{NAMES[role]}.weight"]
                raw = files.pread(record.range.file, record.range.size, record.range.start)
                values[f"table {letter}"] = np.frombuffer(raw, "<f4").reshape(record.shape)
    np.savez(path, **values)
