"""Modules that are imported when a test first uses them, so that tests are collected without torch.

``from tests.lazy import ir, judge, torch`` imports nothing yet. ``judge.ratios`` then imports
``tieconv.onnx.parity.judge``, which needs torch. Functions of `safetensors.torch` wait for their first call.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

FOLDERS = {
    "": "check_jsonschema gguf torch transformers",
    "onnxruntime.quantization": "matmul_nbits_quantizer",
    "onnxscript": "rewriter",
    "pre_commit": "clientlib",
    "tests.onnx.planted": "torch_export",
    "tests.onnx.quantised": "gptq",
    "torch.nn.utils": "prune",
    "tieconv.onnx": "child graph_model ort_session quantise",
    "tieconv.onnx.export": "adapter carry_out encoder_decoder sample_inputs",
    "tieconv.onnx.parity": "batches bindings causes graph_forward judge lookups measured_pair passes "
    "quantised_weights validate weight_identity",
    "tieconv.onnx.share": "untie",
    "tieconv.onnx.write": "session_proof",
    "tieconv.reference": "float64",
}
MODULES = {
    "ir": "onnx_ir",
    "ort": "onnxruntime",
    "ort_quantization": "onnxruntime.quantization",
    "export_layouts": "tieconv.onnx.export.layouts",
    "export_plan": "tieconv.onnx.export.plan",
    "share_find": "tieconv.onnx.share.find",
    "write_plan": "tieconv.onnx.write.plan",
}
for _folder, _names in FOLDERS.items():
    MODULES |= {name: f"{_folder}.{name}".lstrip(".") for name in _names.split()}
FUNCTIONS = dict.fromkeys(("load_file", "load_model", "save_file", "save_model"), "safetensors.torch")


def absent() -> frozenset[str]:
    """Return the packages that this run has to do without."""
    return frozenset(os.environ.get("TIECONV_WITHOUT", "").split())


def version_of(package: str) -> str:
    """Return the installed version of a package; empty if it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Lazy:
    """A module by its name. Attributes are read, replaced and deleted in the module itself, as `monkeypatch` does."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _module(self) -> Any:
        # The statement, not `import_module`: in Pyodide the tests get libraries from another process through it.
        return __import__(self._name, globals(), fromlist=["__name__"])

    @property
    def __dict__(self) -> dict[str, Any]:
        return vars(self._module())  # `monkeypatch` deletes afterwards what it did not find here

    def __getattr__(self, name: str) -> Any:
        if name in ("_mock_name", "__bases__", "__test__", "__wrapped__"):  # pytest asks each name of a module for them
            raise AttributeError(name)
        return getattr(self._module(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._module(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module(), name)


def __getattr__(name: str) -> Any:
    """Return the module or the function. Raises `ModuleNotFoundError` for a package that the run says is absent."""
    if not (module := MODULES.get(name) or FUNCTIONS.get(name)):
        raise AttributeError(name)
    package = "torch" if name in FUNCTIONS else module.partition(".")[0]
    if package in absent():
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if name in FUNCTIONS:
        return lambda *values, **options: getattr(Lazy(module), name)(*values, **options)
    _given.add(module)
    return Lazy(module)


_given: set[str] = set()


def import_given() -> None:
    """Import the modules that test modules have got so far."""
    for name in sorted(_given):
        import_module(name)
