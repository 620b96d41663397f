"""The options of an export, as its steps read them."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import HeadForm
from tieconv.onnx.export.layouts.interface import Layout, Model
from tieconv.onnx.quantise.scheme import Scheme


@record
class Settings:
    """Options of an export.

    ``dtype`` is a torch name, ``fuse`` a provider of ONNX Runtime. ``model`` is what the layout reads of the model.
    """

    dtype: str
    form: HeadForm
    opset: int | None
    provider: str
    parity: bool
    fuse: str | None
    layout: Layout
    model: Model
    quantise: Scheme | None
