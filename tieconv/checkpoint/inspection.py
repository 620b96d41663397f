"""Evidence of an inspection, as frozen dataclasses that serialise to `tieconv.inspect/1`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING

from tieconv.checkpoint.family import Family, Role
from tieconv.checkpoint.model_files import Adapter, Checkpoint
from tieconv.checkpoint.quantised_matrix import HEAD, LISTING_METHODS, DeclaredQuantisation, QuantisedTables, Verdict
from tieconv.checkpoint.relation import State as State
from tieconv.checkpoint.relation.proved import NO_NUMPY, TYPES_NEED_NUMPY, Unread
from tieconv.checkpoint.tie_group import Duplicate, Head, Tie
from tieconv.checkpoint.value_type import Choice, Printed, plain, quoted, record, values_of
from tieconv.text import count, tally
from tieconv.version import VERSION

if TYPE_CHECKING:
    from tieconv.checkpoint.finding import Finding, Prediction
    from tieconv.checkpoint.weight_file import StorageUse, TensorRecord


class Depth(Choice):
    """How much an inspection reads."""

    HEADER = "header"  # headers and documents only
    CANDIDATES = "candidates"  # also the bytes of tied names and of tensors shaped like them
    FULL = "full"  # also all bytes needed to prove every duplicate


@record
class Declared:
    """A tie flag in the config; ``present`` is false if a level that could hold one has none.

    A present flag with the value ``None`` is a JSON null.
    """

    path: str
    value: object
    present: bool = True


@record
class ConfigView:
    """What the config declares and what follows from it in transformers 5.

    ``known`` is false if nothing shows whether the model ties. Its class is then not in the table, and no level of a
    config declares the flag. ``effective`` is then false, and `to_dict` returns ``None`` for it.
    """

    model_type: str
    architectures: tuple[str, ...]
    declared: tuple[Declared, ...]
    effective: bool
    why: str
    known: bool = True
    effect: str = ""  # what transformers loads from these files, and why

    @property
    def verdict(self) -> str:
        """What the config says: ``tied``, ``untied``, or ``unknown``. See `Inspection.headline` for what is loaded."""
        if not self.known:
            return "unknown"
        return "tied" if self.effective else "untied"

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``config``."""
        effective = {"effective": self.effective if self.known else None}
        declared = values_of(self, "model_type architectures declared")
        return declared | effective | {"why": self.why, "effect": self.effect or self.why}


@record
class Shadow:
    """A tensor's name in a weight file that the model does not use; ``differs`` is ``None`` if nothing was compared."""

    name: str
    file: str
    differs: bool | None


@record
class Fetched:
    """The network cost of an inspection: requests including redirects, and bytes of files received."""

    requests: int
    bytes: int


@record
class NotCompared:
    """Tensors that may be copies of each other and were not compared, and the most bytes that they waste then."""

    tensors: int
    bytes: int

    @classmethod
    def among(cls, left: Sequence[TensorRecord]) -> NotCompared | None:
        """Return how many of the tensors that were not compared share a type and a shape; ``None`` without any."""
        one_of = {(record.dtype, record.shape): record for record in left}  # few of half a million sizes are computed
        forms = Counter((record.dtype, record.shape) for record in left)
        groups = [(count, size) for form, count in forms.items() if count > 1 and (size := one_of[form].nbytes)]
        wasted = sum((count - 1) * size for count, size in groups)
        return cls(sum(count for count, _ in groups), wasted) if groups else None

    @property
    def counts(self) -> bool:
        """Whether the bytes are worth a sentence: small models have many small tensors of one shape."""
        return self.bytes >= 100_000


@record
class Missing:
    """What a file lacks in or beside its layers: how that is known, and the names.

    ``experts`` says that other experts of the layer are stored, ``shared`` that transformers 4 shares other layers.
    With ``routers``, the names are those of stored experts without one.
    """

    reason: str
    names: list[str]
    experts: bool = False
    shared: bool = False
    routers: bool = False


class _Layers:
    """Slots for what `missing_layers` and `unfit_tensors` compute once.

    With 90,000 tensors each loader's row would take 0.1 s for either.
    """

    __slots__ = ("layers", "unfit")
    layers: tuple[Missing, ...]
    unfit: tuple[str, list[str]]


@record
class Inspection(_Layers, Printed):
    """Evidence about one model. ``str()`` returns the `tieconv.inspect/1` JSON.

    ``headline`` answers whether the loaded head is tied, as the first line of `tieconv inspect` does. ``findings`` say
    what is wrong. ``config.verdict`` is what the config says alone: the stored tensors may have another effect.

    ``base`` is the header-level evidence about an adapter's base model, if that is available. ``consumers`` are the
    predictions for each loader, if requested. ``fetched`` is the network cost of a remote model. ``tokenizer_rows`` are
    the rows that the tokenizer's ids need, read only if config and tensors disagree about them. ``tokenizer_unread`` is
    a tokenizer file that is too large to read. ``listed_rows`` are those that the listed tokens need.
    ``generation_ids`` are those of a local generation_config.json, after their keys; ``None`` if it was not read.
    ``quantised`` describes a quantised embedding and head, ``quantisation`` what the config says about quantisation.
    ``wrapped_ties`` are the groups under names with a training wrapper's prefix, which no loader accepts. ``live``
    is set for a module in memory. ``not_compared`` counts the tensors that only depth ``full`` compares.
    ``unusable`` says which tables hold ``zeros`` alone, and which tensors hold ``a NaN`` or more. It also
    has the type of a table in which no quantiser stores one.
    """

    checkpoint: Checkpoint
    family: Family
    depth: Depth
    config: ConfigView
    head: Head
    ties: tuple[Tie, ...]
    duplicates: tuple[Duplicate, ...]
    bytes_stored: int
    bytes_unique: int
    bytes_read: int
    findings: tuple[Finding, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    base: Inspection | None = None
    storage: StorageUse | None = None
    consumers: tuple[Prediction, ...] = ()
    wrapped_ties: tuple[Tie, ...] = ()
    tokenizer_rows: int | None = None
    tokenizer_unread: str = ""
    listed_rows: int = 0
    generation_ids: tuple[tuple[str, int], ...] | None = None
    fetched: Fetched | None = None
    quantised: QuantisedTables | None = None
    quantisation: DeclaredQuantisation | None = None
    live: LiveModel | None = None
    not_compared: NotCompared | None = None
    unusable: Mapping[str, str] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The first line of `tieconv inspect`: whether the loaded head is tied, and why."""
        if self.base is not None:
            return f"The base model is {self.base.config.verdict}."
        return self.config.effect or self.config.why

    @property
    def word_tie(self) -> Tie | None:
        """The group with the input and the output embedding, if there is one."""
        return next((tie for tie in self.ties if tie.role is Role.WORD_EMBEDDING), None)

    @property
    def quantised_tables(self) -> QuantisedTables | None:
        """The quantised embedding and head of a model whose parts a plan can write; ``None`` for GGUF and graphs."""
        return self.quantised if self.checkpoint.format in ("safetensors", "torch") else None

    @property
    def without_numpy(self) -> tuple[str, ...]:
        """The tables that were not compared because numpy is not installed."""
        members, tables = (member for tie in self.ties for member in tie.members), self.quantised
        names = [member.name for member in members if member.relation == Unread(reason=TYPES_NEED_NUMPY)]
        if tables and tables.relation and tables.relation.reason == NO_NUMPY:
            names += [matrix.name for matrix in tables.matrices]
        return tuple(names)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.inspect/1`."""
        adapter = self.checkpoint.adapter
        optional = {
            "quantised": self.quantised,
            "quantisation": self.quantisation,
            "graphs": self.checkpoint.graphs,
            "adapter": adapter and self._adapter(adapter),
            "live": self.live,
        }
        checkpoint = self.checkpoint
        return {
            "schema": "tieconv.inspect/1",
            "tieconv": VERSION,
            "depth": str(self.depth),
            "model": {
                **values_of(checkpoint, "source format layout"),
                "files": [{"name": file.name, "bytes": file.size} for file in checkpoint.files],
                "tensors": len(checkpoint.tensors),
                "parameters": checkpoint.parameters,
                **values_of(self, "bytes_stored bytes_unique"),
                **({"not_compared": asdict(self.not_compared)} if self.not_compared else {}),
                **({"revision": checkpoint.revision} if checkpoint.revision else {}),
                **({"unread": list(checkpoint.unread)} if checkpoint.unread else {}),
                **({"fetched": asdict(self.fetched)} if self.fetched else {}),
            },
            "config": self.config.to_dict(),
            "family": {
                "name": self.family.model_type or None,
                "architecture": self.family.architecture or None,
                **values_of(self.family, "knowledge tying"),
                "convention": self.family.convention or None,
            },
            **values_of(self, f"head ties {'wrapped_ties' if self.wrapped_ties else ''} duplicates storage consumers"),
            **{key: plain(value) for key, value in optional.items() if value},
            "findings": plain(self.findings),
        }

    def _facts(self) -> tuple[str, ...]:
        counts = count(len(self.ties), "tie"), count(len(self.checkpoint.files), "file")
        effect = self.config.effect.partition(":")[0].lower() or self.config.verdict
        return quoted(self.checkpoint.source), effect, *counts, *tally(finding.level for finding in self.findings)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for tie in self.ties:
            if tie is not self.word_tie:
                yield "tie", tie.canonical, ", ".join(f"{member.name} ({member.state})" for member in tie.members)
                continue
            for member in tie.members:  # a full square has the canonical bytes, an empty one others
                equal = member.state in (State.CANONICAL, State.ALIASED) or member.relation.repeats_bytes
                mark = ("■" if equal else "□") if member.stored else "↑"
                yield "tie", member.name, f"{mark} {member.state}"
        yield from (finding.row for finding in self.findings)

    def _adapter(self, adapter: Adapter) -> dict[str, object]:
        tied = self.base.config.effective if self.base and self.base.config.known else None
        modules = values_of(adapter, "target_modules=targets modules_to_save=saved")
        return {**values_of(adapter, "kind base_model=base"), "base_tied": tied, **modules}


def lists_float_head(inspection: Inspection) -> bool:
    """Return whether the config lists the head as quantised, but no codes give it values.

    Beside a quantised embedding, an absent head may be tied to the codes: the result is false then.
    """
    declared, tables = inspection.quantisation, inspection.quantised
    listing = (*LISTING_METHODS, "auto-round")
    if declared is None or declared.method not in listing or declared.head.verdict is not Verdict.QUANTISED:
        return False
    if tables is not None and tables.of(HEAD) is not None:
        return False
    head = inspection.head.output_head
    return tables is None or (head is not None and head.stored)


LIVE = "live"
"""The format of a checkpoint that describes a module in memory."""


@record
class LiveModel:
    """A module in memory. Names are those of the module, except in ``written``.

    ``one_object`` are groups of names of one parameter. ``one_storage`` are groups of several parameters that are the
    same elements of one storage: an optimizer updates each of them. ``unread`` are the names whose values tieconv did
    not read, with the reason. ``written`` are the names in the file that `save_pretrained` would write. ``left_out``
    are those that it would drop, each with the name that stays (empty: none). ``refusal`` is why `save_pretrained`
    would fail. ``saves`` is false for a module without `save_pretrained`.
    """

    class_name: str
    one_object: tuple[tuple[str, ...], ...] = ()
    one_storage: tuple[tuple[str, ...], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    saves: bool = False
    written: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    refusal: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``live``."""
        saved = {"writes": list(self.written), "leaves_out": dict(self.left_out), "refuses": self.refusal or None}
        names = values_of(self, "class=class_name one_object one_storage")
        return {**names, "unread": dict(self.unread), "save_pretrained": saved if self.saves else None}
