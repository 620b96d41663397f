"""Models whose names hold orders for terminals and CI runners, and what one would obey of the output."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from fixtures.gguf_bytes import F32, gguf
from fixtures.hostile import entry, file_of
from tests.hostile.conftest import faults_of_text
from tests.lazy import save_file, torch
from tests.patience import received

MARK = "pwned"
EVIL = (
    f"a\n::error file=x::{MARK}\r::warning::{MARK}\x1b]0;{MARK}\x07\x1b[31m\x9b31m"
    f"\u202e\u2066\u200b\u2028##[error]{MARK}\n"
)
"""A forged annotation, a window title, colours by both introducers, reordered and hidden text."""


def write(home: Path, models_home: Path) -> None:
    """Every hostile model, by a folder each."""
    _llama(home / "known", models_home)
    _unknown(home / "unknown", models_home)
    _sharded(home / "sharded")
    _torch(home / "torch")
    _gguf(home / "gguf")
    _adapter(home / "adapter")
    _graph(home / "graph")
    shutil.copytree(home / "known", home / EVIL.replace("/", "_"))
    (home / "text.txt").write_text("w1 w2 w3 " * 200)
    (home / "settings.toml").write_text(f"[tieconv]\n{json.dumps('x' + MARK)} = 1\n")
    (home / "evil.toml").write_text(f"[tieconv]\nselect = [{json.dumps(EVIL)}]\n")
    (home / "baseline.json").write_text(json.dumps({"schema": EVIL, EVIL: EVIL}))


def _values(config: dict[str, object]) -> None:
    config[EVIL] = {"tie_word_embeddings": False, EVIL: {"tie_word_embeddings": EVIL}}
    config["rope_scaling"] = {"rope_type": "default", EVIL: EVIL, "factor": EVIL}
    config["quantization_config"] = {"quant_method": EVIL, EVIL: EVIL}
    config["transformers_version"] = config["torch_dtype"] = config["_name_or_path"] = EVIL


def _llama(home: Path, models_home: Path) -> None:
    shutil.copytree(models_home / "llama-duplicated", home)
    path = home / "config.json"
    config = json.loads(path.read_text())
    _values(config)
    path.write_text(json.dumps(config))
    state = _state(home / "model.safetensors")
    state[EVIL] = torch.ones(2)
    state[f"{EVIL}2"] = torch.ones(2)
    save_file(state, home / "model.safetensors", metadata={"format": "pt", EVIL: EVIL})
    vocabulary = {f"w{i}{EVIL if i % 7 == 0 else ''}": i for i in range(150)} | {EVIL: 150}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=EVIL))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", EVIL: EVIL}))
    (home / "generation_config.json").write_text(json.dumps({EVIL: EVIL, "eos_token_id": EVIL}))
    (home / "modeling_x.py").write_text(f"_tied_weights_keys = [{EVIL!a}]\n")


def _state(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(path))


def _unknown(home: Path, models_home: Path) -> None:
    shutil.copytree(models_home / "llama-duplicated", home)
    config = json.loads((home / "config.json").read_text())
    _values(config)
    config |= {"model_type": EVIL, "architectures": [EVIL, EVIL], "auto_map": {"AutoConfig": EVIL}}
    (home / "config.json").write_text(json.dumps(config))


def _sharded(home: Path) -> None:
    home.mkdir()
    shard = f"model{EVIL.replace('/', '_')}-00001-of-00001.safetensors"
    (home / shard).write_bytes(file_of({EVIL: entry(), "lm_head.weight": entry(offsets=[4, 8])}, bytes(8)))
    index = {"metadata": {"total_size": EVIL}, "weight_map": {EVIL: shard, f"{EVIL}b": shard}}
    (home / "model.safetensors.index.json").write_text(json.dumps(index))


def _torch(home: Path) -> None:
    home.mkdir()
    torch.save({"state_dict": {EVIL: torch.ones(3), "b": torch.ones(3)}, EVIL: EVIL}, home / "pytorch_model.bin")


def _gguf(home: Path) -> None:
    home.mkdir()
    tensors = [(EVIL, (4,), F32, bytes(16)), ("output.weight", (4,), F32, bytes(16))]
    (home / "model.gguf").write_bytes(gguf(tensors, {"general.architecture": EVIL, EVIL: EVIL, "general.name": EVIL}))


def _adapter(home: Path) -> None:
    home.mkdir()
    config = {"peft_type": EVIL, "base_model_name_or_path": EVIL, "target_modules": [EVIL], "modules_to_save": [EVIL]}
    (home / "adapter_config.json").write_text(json.dumps(config))
    names = (f"base_model.model.{EVIL}.lora_A.weight", "base_model.model.lm_head.weight")
    header = {name: entry(offsets=[4 * i, 4 * i + 4]) for i, name in enumerate(names)}
    (home / "adapter_model.safetensors").write_bytes(file_of(header, bytes(8)))


def _graph(home: Path) -> None:
    """An embedding and a tied head, whose nodes read inputs that nothing makes."""
    home.mkdir()
    table = np.arange(96 * 8, dtype=np.float32).reshape(96, 8)
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["hidden"], name=EVIL),
        helper.make_node("Add", ["hidden", f"missing{EVIL}"], [f"sum{EVIL}"], name=f"{EVIL}2", doc_string=EVIL),
        helper.make_node("MatMul", [f"sum{EVIL}", "head"], ["logits"], name=f"{EVIL}3"),
    ]
    graph = helper.make_graph(
        nodes,
        EVIL,
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", 96])],
        [
            numpy_helper.from_array(table, "embed"),
            numpy_helper.from_array(table.T.copy(), "head"),
            numpy_helper.from_array(table, EVIL),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name=EVIL)
    model.ir_version = 10
    (home / "model.onnx").write_bytes(model.SerializeToString())


TIMEOUT = 240
_BAR = re.compile(r"\x1b\[(?:\?25[lh]|2K|1A)|\r")
"""What rich's progress bars write: the cursor hidden, shown and moved up, a line cleared, and the start of the line."""
_WITH_BAR = "from tieconv.cli import main, screen; screen.PATIENCE = -1; main(prog_name='tieconv')"
"""tieconv that draws its bar at once, on a fast machine too."""
_OWN = re.compile(r"::(error|warning|notice) (file=[^:,\s]+,)?title=[^:]*::[^\n]*")
"""An annotation that tieconv means."""


def on_terminal(home: Path, *arguments: str) -> bytes:
    """What a terminal receives."""
    master, slave = pty.openpty()
    program = [sys.executable, "-P", "-c", _WITH_BAR, *arguments]
    with subprocess.Popen(program, cwd=home, env=_environment(), stdin=slave, stdout=slave, stderr=slave):
        os.close(slave)
        return received(master)


def piped(home: Path, *arguments: str) -> bytes:
    """What a log receives: stdout and stderr in one."""
    program = [sys.executable, "-P", "-m", "tieconv", *arguments]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(program, cwd=home, env=_environment(), timeout=TIMEOUT, check=False, **streams).stdout


def faults(received: bytes, *, annotates: bool = False) -> list[str]:
    """What in it is obeyed and not meant."""
    try:
        text = _BAR.sub("\n", received.decode("utf-8"))
    except UnicodeDecodeError as error:
        return [f"is not UTF-8: {error}"]
    if annotates:
        text = "\n".join(line for line in text.split("\n") if not _OWN.fullmatch(line))
    return faults_of_text(text)


def _environment() -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRANSFORMERS_VERBOSITY", "TQDM_DISABLE")
    }
    return {**environment, "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "PYTHONUTF8": "1"}
