"""What the gate says of every case, as data: ``python -m tests.checks.branches.record`` writes `RECORD` anew."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import tieconv as api
from fixtures.onnx_graphs import H, V, embedding, transposed, values
from tests.checks import test_levels
from tests.checks.branches import ties
from tests.checks.fixtures import asked, builder
from tests.checks.fixtures.files import save_ranks
from tests.checks.fixtures.graphs import saved
from tests.checks.fixtures.model import EMBED, HEAD, KIMI, Tensors, flagged, llama, matrix, save, vector, weights
from tests.checks.fixtures.more import TOKEN_ROWS, base_of, of_config, save_adapter
from tests.inspection.quantised.stored_models import GPTQ, MLX_SIZES, NAMED, equal, gptq, mlx, model, packed
from tests.lazy import torch
from tieconv.checks.registry import RULES

RECORD = Path(__file__).with_name("expected.json")
Build = Callable[[Path], Path]


def _saved(case: ties.Case) -> Build:
    return lambda folder: save(folder, *case)


def cases() -> dict[str, tuple[Build, str | None]]:
    """Each case's builder, and the loader that it is inspected for."""
    by_name: dict[str, tuple[Build, str | None]] = {}
    for rule in RULES:
        build = builder(rule.code, "bad")
        assert build is not None
        by_name[f"{rule.code} bad fixture"] = (build, asked(rule.code))
    for name, (config, tensors, _) in test_levels.CASES.items():
        by_name[f"level: {name}"] = (_saved((config, tensors)), None)
    by_name |= {name: (build, None) for name, build in BUILT.items()}
    return by_name | {name: (_saved(case), None) for name, case in ties.CASES.items()}


def _mistral(folder: Path) -> Path:
    (folder / "params.json").parent.mkdir(parents=True)
    (folder / "params.json").write_text("{}")
    tensors = {"tok_embeddings.weight": matrix(), "output.weight": matrix(seed=1)}
    (folder / "consolidated.safetensors").write_bytes(weights(tensors))
    return folder


def _beside(tensors: Tensors) -> Build:
    """A tied Llama as safetensors, and these tensors as a torch file."""

    def build(folder: Path) -> Path:
        save(folder, ties.TIED, llama())
        torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, folder / "pytorch_model.bin")
        return folder

    return build


def _gguf_beside(folder: Path) -> Path:
    (save(folder, ties.TIED, llama()) / "model-q4.gguf").write_bytes(b"GGUF")
    return folder


def _old(**versions: int) -> Build:
    """A graph with a transposed copy of the embedding, of an old version."""

    def build(folder: Path) -> Path:
        graph = transposed()
        vars(graph).update(versions)
        return saved(graph, folder)

    return build


def _read_by_cast(folder: Path) -> Path:
    graph = embedding()
    graph.tensors["lm_head.weight"] = values(1, (V, H), "f2")
    graph.tensors["model.embed_tokens.weight"] = graph.tensors["lm_head.weight"].astype("f4")
    graph.add("Cast", ["lm_head.weight"], "cast", to=1)
    graph.add("Transpose", ["cast"], "turned", perm=[1, 0])
    graph.add("MatMul", [graph.body(), "turned"], "logits")
    graph.output("logits")
    return saved(graph, folder)


def _left_operand(folder: Path) -> Path:
    """Another MatMul reads the transposed copy from the left."""
    graph = transposed()
    graph.tensors["weights"] = values(3, (V, 1))
    graph.add("MatMul", ["onnx::MatMul_447", "weights"], "weighted")
    return saved(graph, folder)


def _of_training(*keys: str) -> Build:
    """A torch file of the name that transformers reads, with a tied Llama below each key."""

    def build(folder: Path) -> Path:
        save(folder, ties.TIED, llama())
        (folder / "model.safetensors").unlink()
        state = {name: torch.from_numpy(array) for name, array in llama().items()}
        torch.save({"epoch": 3, **dict.fromkeys(keys, state)}, folder / "pytorch_model.bin")
        return folder

    return build


HEAD_TOKENS = {"base_model.model.lm_head.token_adapter.trainable_tokens_delta": matrix(1)}
COPIES = {f"base_model.model.{name}": matrix() for name in (HEAD, EMBED)}
BUILT: dict[str, Build] = {
    "TIE012 Mistral's own format": _mistral,
    "STO005 a training checkpoint": _of_training("state_dict"),
    "STO005 two models": _of_training("model", "ema"),
    "IDX009 equal": _beside(llama()),
    "IDX009 a copy and a buffer more": _beside({**llama(head=matrix()), "model.rotary_emb.inv_freq": vector(2)}),
    "IDX009 another embedding": _beside({**llama(), EMBED: matrix(seed=1)}),
    "IDX009 a norm more": _beside({**llama(), "model.layers.0.norm.weight": vector(4)}),
    "IDX009 GGUF beside": _gguf_beside,
    "PEF004 the head of a class that never ties": lambda folder: save_adapter(
        folder,
        {"base_model.model.lm_head.weight": matrix(10)},
        save(folder / "base", flagged(KIMI, False), llama(head=matrix(seed=1))),
        modules_to_save=["lm_head"],
    ),
    "PEF005 rows of the head of a tied model": lambda folder: save_adapter(
        folder, HEAD_TOKENS, base_of(folder), trainable_token_indices={"lm_head": [3]}
    ),
    "PEF005 rows of the head of an untied model": lambda folder: save_adapter(
        folder, HEAD_TOKENS, base_of(folder, tied=False), trainable_token_indices={"lm_head": [3]}
    ),
    "PEF005 other rows of the head than of the embedding": lambda folder: save_adapter(
        folder,
        HEAD_TOKENS | TOKEN_ROWS,
        base_of(folder),
        trainable_token_indices={"lm_head": [3], "embed_tokens": [1, 2, 4]},
    ),
    "PEF002 copies that save_embedding_layers stores": lambda folder: save_adapter(folder, COPIES, base_of(folder)),
    "ONX001 an old opset": _old(opset=10),
    "ONX001 an old IR": _old(ir_version=3),
    "ONX001 a Cast reads the head": _read_by_cast,
    "ONX001 a left operand": _left_operand,
    "TRN001 no prefix": lambda folder: save_ranks(
        folder, llama() | {f"{name}.exp_avg": matrix() for name in (EMBED, HEAD)}
    ),
    "TRN001 other names": lambda folder: save_ranks(folder, llama() | {"optim.state.a.weight.exp_avg": matrix()}),
    "QNT010 untied": lambda folder: model(folder, gptq, GPTQ, False, "fq"),
    "QNT008 a class whose flag may not change": lambda folder: model(
        folder, packed, of_config(NAMED, ignore=["lm_head"]), False, "fq", kind="Zamba"
    ),
    "QNT007 untied": lambda folder: model(folder, equal(mlx), MLX_SIZES, False, "qq"),
    "QNT007 untied, mlx-lm needs it": lambda folder: model(folder, equal(mlx), MLX_SIZES, False, "qq", kind="Helium"),
}


def messages(build: Build, loader: str | None, folder: Path) -> list[dict[str, object]]:
    """Every finding with its level, message, tensors and remedy; the model's path is MODEL."""
    findings = api.inspect(build(folder / "model"), consumers=loader).findings
    return [
        {
            "rule": finding.rule,
            "level": str(finding.level),
            "message": finding.message.replace(str(folder), "FOLDER"),
            "tensors": list(finding.tensors),
            "command": finding.remedy and finding.remedy.command.replace(str(folder), "FOLDER"),
            "safe": finding.remedy and finding.remedy.safe,
        }
        for finding in findings
    ]


def main() -> None:
    """Write what every case gives now; read the difference before it is committed."""
    every = {}
    for name, (build, loader) in cases().items():
        with tempfile.TemporaryDirectory() as folder:
            every[name] = messages(build, loader, Path(folder))
    RECORD.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
