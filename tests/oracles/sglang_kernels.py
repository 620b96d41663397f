"""Stand-ins for SGLang's kernels for CPU, which no package has. To load a model, SGLang calls none of them.

A runner imports this module before it imports SGLang.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Kernels(types.ModuleType):
    """A module that has a function of every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


sys.modules["sgl_kernel"] = _Kernels("sgl_kernel")

from sglang.srt.layers.attention.mamba import mamba  # noqa: E402  (it imports the kernels)
from sglang.srt.layers.rotary_embedding import factory  # noqa: E402

for _name in ("causal_conv1d_fn", "causal_conv1d_update"):  # SGLang imports them for GPUs alone
    mamba.__dict__.setdefault(_name, None)
    mamba.__dict__.setdefault(f"{_name}_triton", None)

factory.get_rope_cpu = lambda *arguments: factory.get_rope(*arguments[:-1])  # for CPU, SGLang has a kernel of one type
