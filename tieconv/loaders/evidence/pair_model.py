"""Build the `Loaded` of a loader that knows only an embedding and a head: two parameters, or one."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record
from tieconv.loaders.evidence.head_pair import Pair, in_file, stored_bias
from tieconv.loaders.loaded import Absence, Loaded, Parameter


@record
class PairModel:
    """The model in one loader. ``absence`` says what a parameter contains if it is not stored.

    ``has_bias`` says that the loader's class has a head bias, also one that the class of transformers lacks.
    """

    loader: str
    inspection: Inspection
    pair: Pair
    has_bias: bool = False
    absence: Absence = Absence.RANDOM

    def untied(self, *, remark: str = "", if_differ: bool = False) -> Loaded:
        """Return the head and the embedding as two parameters; ``if_differ``: equal tensors become one."""
        names = (self.pair.head, self.pair.embedding)
        return self._loaded({name: self._parameter(name) for name in names}, remark, compare=if_differ)

    def tied(self, source: str, *, remark: str = "", in_order: bool = False) -> Loaded:
        """Return one parameter with the tensor ``source``; ``in_order``: the last of two stored tensors wins."""
        parameter = self._parameter(source)
        return self._loaded(
            dict.fromkeys((self.pair.head, self.pair.embedding), parameter), remark, compare=True, in_order=in_order
        )

    def tied_after_loading(self, *, remark: str = "") -> Loaded:
        """Return one parameter for two stored tensors that are equal once the loader has cast them."""
        embedding, head = self._parameter(self.pair.embedding), self._parameter(self.pair.head)
        tables = {self.pair.head: Parameter(head.stored, embedding.parameter), self.pair.embedding: embedding}
        return self._loaded(tables, remark, compare=False)

    def _parameter(self, name: str) -> Parameter:
        stored = name in self.inspection.checkpoint.tensors
        return Parameter(name, name) if stored else Parameter(None, name, self.absence)

    def _loaded(self, tables: Mapping[str, Parameter], remark: str, *, compare: bool, in_order: bool = False) -> Loaded:
        family, pair = self.inspection.family, self.pair
        names = {family.input_embedding or "": pair.embedding, family.output_head or "": pair.head}
        if self.has_bias:
            names |= {name: in_file(self.inspection, name) for name in family.output_biases}
            names |= {name: name for name in stored_bias(self.inspection) if name not in names.values()}
        biases = {name: self._parameter(name) for name in names.values() if name not in tables}
        parameters = {**tables, **biases}
        used = {parameter.stored for parameter in parameters.values()}
        stored = (*self._stored_tables(), *stored_bias(self.inspection))
        both = (pair.embedding, pair.head)
        return Loaded(
            self.loader,
            names,
            parameters,
            discarded=tuple(name for name in stored if name not in used),
            in_order=both if in_order and pair.same is False else (),
            undecided=both if compare and len(self._stored_tables()) > 1 and pair.same is None else None,
            remark=remark,
        )

    def _stored_tables(self) -> tuple[str, ...]:
        held = ((self.pair.head, self.pair.has_head), (self.pair.embedding, self.pair.has_embedding))
        return tuple(name for name, stored in held if stored)
