"""Run llama.cpp on jobs: its converter writes an F32 GGUF, and libllama computes the logits of the prompt.

The environment of this interpreter holds both, as `tests/oracles/environments.py` makes it: ``llama.cpp`` with the
converter, and ``libllama`` with the shared libraries. Only the hash of the BPE pre-tokenizer is replaced: the converter
knows no tokenizer of a tiny model. A missing tokenizer.model is added, because some classes read no other file.
"""

from __future__ import annotations

import ctypes
import io
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from observe import Job, Observation, from_logits, from_tables, serve

HOME = Path(sys.prefix)
CONVERTER, LIBRARIES = HOME / "llama.cpp", HOME / "libllama"
CONTEXT = 64  # tokens


class ModelParams(ctypes.Structure):
    """``llama_model_params``: only its defaults are used, so its fields stay opaque. It may be longer than in C."""

    _fields_ = [("opaque", ctypes.c_uint64 * 32)]


class ContextParams(ctypes.Structure):
    """The first fields of ``llama_context_params``, with room for the others."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, ctypes.c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, ctypes.c_int32) for name in ("n_threads", "n_threads_batch")),
        ("opaque", ctypes.c_uint64 * 48),
    ]


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    ]


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Library:
    """The functions of libllama that a forward pass needs."""

    def __init__(self) -> None:
        ggml = ctypes.CDLL(str(next(LIBRARIES.glob("libggml.*so*"))), mode=ctypes.RTLD_GLOBAL)
        ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
        self.api = api = ctypes.CDLL(str(next(LIBRARIES.glob("libllama.*so*"))))
        self.errors: list[str] = []
        self._log = _LOG(self._keep)
        api.llama_log_set(self._log, None)
        ggml.ggml_backend_load_all_from_path(str(LIBRARIES).encode())
        api.llama_backend_init()
        for name in ("model_load_from_file", "init_from_model", "model_get_vocab"):
            getattr(api, f"llama_{name}").restype = ctypes.c_void_p
        api.llama_model_default_params.restype = ModelParams
        api.llama_context_default_params.restype = ContextParams
        api.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        api.llama_init_from_model.argtypes = [ctypes.c_void_p, ContextParams]
        api.llama_batch_get_one.restype = Batch
        api.llama_batch_get_one.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        for name in ("encode", "decode"):
            getattr(api, f"llama_{name}").argtypes = [ctypes.c_void_p, Batch]
        api.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        api.llama_get_logits_ith.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        api.llama_model_has_encoder.restype = ctypes.c_bool
        for name in ("free", "model_free", "model_get_vocab", "model_has_encoder", "vocab_n_tokens"):
            getattr(api, f"llama_{name}").argtypes = [ctypes.c_void_p]

    def _keep(self, level: int, text: bytes, _: Any) -> None:
        if level >= 3 and text.strip():  # GGML_LOG_LEVEL_WARN and above
            self.errors = [*self.errors[-9:], text.decode(errors="replace").strip()]

    def logits(self, path: Path, prompt: Sequence[int]) -> Any:
        """Return the logits of the prompt's last position. Raises `RuntimeError` with what the library logged."""
        self.errors = []
        model = self.api.llama_model_load_from_file(str(path).encode(), self.api.llama_model_default_params())
        if not model:
            raise RuntimeError(next((line for line in self.errors if "error loading" in line), "no model"))
        try:
            return self._decoded(model, prompt)
        finally:
            self.api.llama_model_free(model)

    def _decoded(self, model: int, prompt: Sequence[int]) -> Any:
        params = self.api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
        params.n_threads = params.n_threads_batch = 1
        context = self.api.llama_init_from_model(model, params)
        if not context:
            raise RuntimeError(f"no context: {self.errors[-1:]}")
        try:
            tokens = (ctypes.c_int32 * len(prompt))(*prompt)
            steps = [self.api.llama_encode] if self.api.llama_model_has_encoder(model) else []
            for step in (*steps, self.api.llama_decode):
                code = step(context, self.api.llama_batch_get_one(tokens, len(prompt)))
                if code:
                    raise RuntimeError(f"decoding stops with code {code}: {self.errors[-1:]}")
            rows = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(model))
            found = self.api.llama_get_logits_ith(context, -1)
            if not found:
                raise RuntimeError("the model has no logits")
            return np.ctypeslib.as_array(found, (rows,)).copy()
        finally:
            self.api.llama_free(context)


class Converter:
    """llama.cpp's ``convert_hf_to_gguf.py``, imported once."""

    def __init__(self) -> None:
        sys.path[:0] = [str(CONVERTER), str(CONVERTER / "gguf-py")]
        import conversion
        import gguf
        import torch

        torch.set_num_threads(1)
        logging.disable(logging.WARNING)
        conversion.ModelBase.get_vocab_base_pre = lambda *_: "gpt-2"
        conversion.TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
        self._conversion, self._torch = conversion, torch
        self._reader = gguf.GGUFReader
        self._type = gguf.LlamaFileType.ALL_F32
        self._sentencepiece: dict[int, bytes] = {}

    def convert(self, folder: Path, path: Path) -> None:
        """Write the GGUF file of the model in ``folder`` to ``path``, as the script's ``main`` does."""
        made = self._conversion
        with self._torch.inference_mode():
            config = made.ModelBase.load_hparams(folder, False)
            kind = made.get_model_class(made.get_model_architecture(config, made.ModelType.TEXT))
            kind(folder, self._type, path).write()

    def tables(self, path: Path) -> tuple[Any, Any, bool, Any]:
        """Return the embedding and the head in a GGUF that libllama has loaded, whether they are one, and the bias."""
        reader = self._reader(path)
        tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        embedding = tensors["token_embd.weight"]
        head = tensors.get("output.weight")
        return embedding, embedding if head is None else head, head is None, tensors.get("output.bias")

    def prepared(self, folder: Path, copy: Path) -> Path:
        """Return a copy with links to the files of ``folder``, and a tokenizer.model."""
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).symlink_to(file)
        config = json.loads((folder / "config.json").read_text())
        rows = {**config, **config.get("text_config", {})}.get("vocab_size", 0)
        if not (folder / "tokenizer.model").exists():
            (copy / "tokenizer.model").write_bytes(self._pieces(rows))
        return copy

    def _pieces(self, rows: int) -> bytes:
        """Return a SentencePiece model with at most ``rows`` pieces."""
        if rows not in self._sentencepiece:
            import sentencepiece

            made = io.BytesIO()
            letters = "abcdefghijklmnopqrstuvwxyz"
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([f"{first}{second} {second}" for first in letters for second in letters]),
                model_writer=made,
                vocab_size=min(rows, 60),
                model_type="unigram",
                hard_vocab_limit=False,
                minloglevel=2,
            )
            self._sentencepiece[rows] = made.getvalue()
        return self._sentencepiece[rows]


def main() -> None:
    """Answer the jobs of stdin."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "NO_LOCAL_GGUF": "1", "GGML_NO_BACKTRACE": "1"}
    converter, library = Converter(), Library()

    def observe(job: Job) -> Observation:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "model.gguf"
            converter.convert(converter.prepared(Path(job["folder"]), Path(name) / "model"), path)
            logits = library.logits(path, job["prompt"])
            if job.get("by tables"):
                return from_tables(job, *converter.tables(path))
            seen = from_logits(job, logits)
            if seen["outcome"] not in ("unmatched", "random"):
                return seen
            # Another order of roundings, or a layer that differs. libllama fills no tensor by itself.
            return from_tables(job, *converter.tables(path)) | {"why": f"the GGUF's tables; {seen['why']}"}

    serve(observe)


if __name__ == "__main__":
    main()
