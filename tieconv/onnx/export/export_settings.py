"""The settings of an export, as its steps read them."""

from __future__ import annotations

from tieconv.checkpoint.results.exported import PRECISIONS
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.export_options import ExportOptions
from tieconv.checkpoint.write_plan.graph import HeadForm
from tieconv.onnx.export.layouts.interface import Layout, Model
from tieconv.onnx.quantise.scheme import Scheme


@record
class Settings:
    """The ``options`` of the user, the ``layout`` that they name, and the ``model`` as that layout reads it."""

    options: ExportOptions
    layout: Layout
    model: Model

    @property
    def dtype(self) -> str:
        """The precision as torch names it."""
        return PRECISIONS[self.options.precision]

    @property
    def form(self) -> HeadForm:
        """The form of the head. Fused operators include the head's FusedMatMul."""
        return HeadForm.FUSED if self.options.fuse else self.options.head_form

    @property
    def scheme(self) -> Scheme | None:
        """How the weights are quantised."""
        return None if self.options.quantise is None else Scheme(self.options.quantise)
