"""Check that the packages for graphs are installed, before anything is read."""

from __future__ import annotations

from importlib.util import find_spec

from tieconv.errors import RefusedError
from tieconv.install import install_command

_PIP = {"onnx": "onnx", "onnx_ir": "onnx-ir", "onnxruntime": "onnxruntime"}


def require_graph_packages() -> None:
    """Raise `RefusedError` if a package that reads and writes graphs is not installed."""
    missing = [_PIP[name] for name in ("onnx", "onnx_ir") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise RefusedError(
            f"reading an ONNX graph needs {' and '.join(missing)}, which {verb} not installed",
            install_command("onnx"),
            "onnx.not-installed",
        )


def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed."""
    return find_spec("onnxruntime") is not None
