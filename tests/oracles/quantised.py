"""Hold the cells of quantised tables against the programs: ``python -m tests.oracles.quantised LOADER PYTHON``.

LOADER is ``transformers``, whose environment needs compressed-tensors too, or ``llama.cpp``. Each checkpoint is a tiny
Llama whose embedding and head are float or quantised, under each tie flag. Prints each combination with the prediction
and with what the program did; exits with 1 if they differ.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tr
from safetensors.torch import save_file

from tests.oracles.runner import SCRIPTS, Runner
from tests.oracles.tokenizer import write_tokenizer
from tieconv import inspect
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD
from tieconv.inspection.quantised.values.row_decoders import QuantisedRows, row_blocks
from tieconv.sources.local.files import open_files

ROWS, WIDTH, GROUP = 128, 64, 32
NAMES = {EMBEDDING: "model.embed_tokens", HEAD: "lm_head"}
LOADERS = {"transformers": ("transformers", "5.x"), "llama.cpp": ("llama.cpp", "2026")}
PAIRS = (("float", "quantised"), ("quantised", "absent"), ("quantised", "quantised"), ("quantised", "float"))
Tensors = dict[str, torch.Tensor]


def packed(seed: int) -> Tensors:
    """Codes of 4 bits as compressed-tensors packs them."""
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (ROWS, WIDTH // 8), generator=random).to(torch.int32)
    scales = torch.rand(ROWS, WIDTH // GROUP, generator=random) * 0.05 + 0.01
    return {"weight_packed": words, "weight_scale": scales, "weight_shape": torch.tensor([ROWS, WIDTH])}


def gptq(seed: int) -> Tensors:
    """Symmetric codes of 4 bits as GPTQ v1 packs them."""
    random = torch.Generator().manual_seed(seed)
    groups = WIDTH // GROUP
    return {
        "qweight": torch.randint(-(2**31), 2**31, (WIDTH // 8, ROWS), generator=random).to(torch.int32),
        "qzeros": torch.full((groups, ROWS // 8), 0x77777777, dtype=torch.int32),
        "scales": (torch.rand(groups, ROWS, generator=random) * 0.05 + 0.01).half(),
        "g_idx": (torch.arange(WIDTH) // GROUP).int(),
    }


def fp8(seed: int) -> Tensors:
    """Codes of F8_E4M3 with a scale a row, as compressed-tensors stores them."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randn(ROWS, WIDTH, generator=random).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": torch.rand(ROWS, 1, generator=random) * 0.05 + 0.01}


def _targets(roles: list[str]) -> list[str]:
    return [rf"re:.*{NAMES[role].rpartition('.')[2]}$" for role in roles]


def _compressed(form: str, weights: dict[str, Any], roles: list[str]) -> dict[str, Any]:
    group = {"targets": _targets(roles), "weights": weights}
    settings = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": []}
    return {**settings, "format": form, "config_groups": {"g": {**group, "format": form}}}


def _packed_config(roles: list[str]) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
    return _compressed("pack-quantized", weights, roles)


def _fp8_config(roles: list[str]) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    return _compressed("float-quantized", weights, roles)


def _gptq_config(roles: list[str]) -> dict[str, Any]:
    return {
        "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False,
        "checkpoint_format": "gptq", "lm_head": HEAD in roles, "backend": "torch",
    }  # fmt: skip


SCHEMES = {"packed": (packed, _packed_config), "fp8": (fp8, _fp8_config), "gptq": (gptq, _gptq_config)}


def checkpoints(folder: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """Write each combination: its name, its directory, and how each table is stored."""
    torch.manual_seed(0)
    config = tr.LlamaConfig(
        vocab_size=ROWS, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    body = dict(tr.LlamaForCausalLM(config).state_dict())
    tables = {role: body.pop(f"{module}.weight") for role, module in NAMES.items()}
    for scheme, (make, describe) in SCHEMES.items():
        for tied in (True, False):
            for pair in PAIRS:
                stored = dict(zip(NAMES, pair, strict=True))
                name = f"{scheme} {'tied' if tied else 'untied'} {pair[0]}+{pair[1]}"
                tensors = dict(body)
                for seed, (role, form) in enumerate(stored.items()):
                    parts = {"quantised": make(seed), "float": {"weight": tables[role]}, "absent": {}}[form]
                    tensors |= {f"{NAMES[role]}.{leaf}": value.contiguous() for leaf, value in parts.items()}
                target = folder / name.replace(" ", "-")
                config.tie_word_embeddings = tied
                roles = [role for role, form in stored.items() if form == "quantised"]
                config.quantization_config = describe(roles)
                config.architectures = ["LlamaForCausalLM"]
                config.save_pretrained(target)
                save_file(tensors, target / "model.safetensors", {"format": "pt"})
                write_tokenizer(target, ROWS)
                yield name, target, stored


def reference(folder: Path, stored: dict[str, str], path: Path) -> None:
    """Write the float values of the stored tables, under the names that `observe` compares with."""
    inspection = inspect(folder)
    values: dict[str, Any] = {}
    with open_files(str(folder)) as files:
        for role, letter in ((EMBEDDING, "E"), (HEAD, "H")):
            if stored[role] == "quantised":
                assert inspection.quantised is not None
                matrix = inspection.quantised.of(role)
                assert matrix is not None
                rows = QuantisedRows(matrix, inspection.checkpoint.tensors, files)
                blocks = [rows.block(start, stop).values for start, stop in row_blocks(matrix.shape or (0, 0))]
                values[f"table {letter}"] = (np.concatenate(blocks) / rows.divisor).astype("f4")
            elif stored[role] == "float":
                record = inspection.checkpoint.tensors[f"{NAMES[role]}.weight"]
                raw = files.pread(record.range.file, record.range.size, record.range.start)
                values[f"table {letter}"] = np.frombuffer(raw, "<f4").reshape(record.shape)
    np.savez(path, **values)


def main(loader: str, python: str) -> int:
    """Compare; return 1 if an answer differs."""
    SCRIPTS["quantised"] = "run_quantised.py"
    runner, differs = Runner("quantised" if loader == "transformers" else loader, python), 0
    with tempfile.TemporaryDirectory() as work:
        for name, folder, stored in checkpoints(Path(work)):
            path = folder.with_suffix(".npz")
            reference(folder, stored, path)
            job = {
                "id": name, "folder": str(folder), "class": "LlamaForCausalLM", "layout": "", "by tables": True,
                "prompt": [3, 9, 27], "reference": str(path),
                "stored": {"bias": "absent", "embedding": True, "head": "absent" if stored[HEAD] == "absent" else "H"},
            }  # fmt: skip
            seen = runner.observe(job)
            predicted = next(
                str(each.outcome)
                for each in inspect(folder, consumers=loader).consumers
                if (each.name, each.version) == LOADERS[loader]
            )
            right = predicted in (seen["outcome"], "unknown")
            differs += not right
            print(f"{'ok   ' if right else 'WRONG'} {name}: {predicted}, seen {seen['outcome']} {seen['why']}"[:200])
    runner.close()
    return int(differs > 0)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
