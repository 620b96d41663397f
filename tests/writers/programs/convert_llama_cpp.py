"""llama.cpp's converter writes GGUF files of floats and of Q8_0, and libllama reads the results."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fixtures import zoo
from tests import oracles
from tests.oracles.checkpoints import CONFIGS, older_keys
from tests.oracles.tokenizer import write_tokenizer
from tests.writers.program import PROMPT, Case, Facts, serve, without_sampling

sys.path += oracles.__path__
import run_llama_cpp

FILE = "model.gguf"
KINDS = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM", "GPT2LMHeadModel", "Starcoder2ForCausalLM",
    "StableLmForCausalLM", "FalconForCausalLM", "Phi3ForCausalLM",
)  # fmt: skip
TIED_ONLY = ("Gemma2ForCausalLM",)
"""llama.cpp has no head for these."""
UNTIED_ONLY = ("StableLmForCausalLM",)
"""libllama refuses the tied file that the converter writes: it asks for output.weight."""
TYPES = ("ALL_F32", "MOSTLY_F16", "MOSTLY_BF16", "MOSTLY_Q8_0")
NAMES = {"embedding": "token_embd.weight", "head": "output.weight"}
os.environ |= {"NO_LOCAL_GGUF": "1", "GGML_NO_BACKTRACE": "1"}
CONVERTER, LIBRARY = run_llama_cpp.Converter(), run_llama_cpp.Library()


def write(kind: str, tied: bool, stored: str, folder: Path) -> Facts:
    """Convert a model. Its file has a head only where the checkpoint has one."""
    import gguf

    model = without_sampling(zoo.build(kind, tie=tied, **CONFIGS.get(kind, {})))
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        model.save_pretrained(source)
        write_tokenizer(source, zoo.VOCAB)
        config = source / "config.json"
        config.write_text(json.dumps(older_keys(json.loads(config.read_text()))))
        CONVERTER._type = gguf.LlamaFileType[stored]
        CONVERTER.convert(CONVERTER.prepared(source, Path(scratch) / "copy"), folder / FILE)
    is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return {"tied": is_tied} | {role: name for role, name in NAMES.items() if role == "embedding" or not is_tied}


def read(path: Path) -> Any:
    return LIBRARY.logits(path, PROMPT)


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for tied in (True,) if kind in TIED_ONLY else (False,) if kind in UNTIED_ONLY else (True, False):
            for stored in TYPES:
                title = f"{kind.partition('For')[0]} {'tied' if tied else 'untied'} {stored.removeprefix('MOSTLY_')}"
                yield Case(title, partial(write, kind, tied, stored), read, reads=("any",), file=FILE)


if __name__ == "__main__":
    serve(cases())
