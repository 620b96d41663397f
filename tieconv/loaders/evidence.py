"""The questions that loaders share: the names in the file, tied groups, equal tensors, files and rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import assert_never

from tieconv.architectures import effective_flag, locate, spelled, unexplained
from tieconv.architectures.stored_names import missing_layers, surplus_layers
from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Role, Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import BLOCKING, OPENED, TWO_FORMATS, Layout, weight_map
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.relation import Absent, Aliased, Canonical, proved
from tieconv.checkpoint.tie_group import BiasState, Head, Member, OutputBias, Tie
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import fits
from tieconv.loaders import release_tables
from tieconv.loaders.loaded import Absence, Cause, Loaded, Parameter, Refusal, missing, unknown
from tieconv.text import in_words, shown, with_type


# The embedding, the head and its bias in the files of a model.
@record
class Pair:
    """The input embedding and the head, by their names in the file, and whether the file stores them.

    ``same`` says whether both stored tensors have the same values; ``None`` if they were not compared.
    """

    embedding: str
    head: str
    has_embedding: bool
    has_head: bool
    same: bool | None


def head_pair(inspection: Inspection) -> Pair | None:
    """Return the embedding and the head, or ``None`` if the table does not name both."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    if family.input_embedding is None or family.output_head is None:
        return None
    embedding, head = in_file(inspection, family.input_embedding), in_file(inspection, family.output_head)
    both = embedding in tensors and head in tensors
    equal = _same_values(inspection, embedding, head) if both else None
    return Pair(embedding, head, embedding in tensors, head in tensors, equal)


def in_file(inspection: Inspection, name: str) -> str:
    """Return the name that a tensor has, or would have, in the file."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    return locate(family, name, tensors) or spelled(family, name, tensors)


def _same_values(inspection: Inspection, embedding: str, head: str) -> bool | None:
    members = {member.name: member for tie in inspection.ties for member in tie.members}
    if embedding not in members or head not in members:
        return None
    first, second = members[embedding], members[head]
    if State.CANONICAL not in (first.state, second.state):
        return None
    return same(second if first.state is State.CANONICAL else first)


def same(member: Member) -> bool | None:
    """Return whether a stored member gives the same logits as its group's reference; ``None`` if unknown."""
    match member.state:
        case State.CANONICAL | State.ALIASED | State.IDENTICAL:
            return True
        case State.UNREAD | State.ABSENT | State.CAST:
            return member.relation.is_lossless_cast or None
        case State.TRANSPOSED | State.SCALED | State.NEAR | State.DISTINCT:
            return member.relation.sign_of_zero_only
        case _:
            assert_never(member.state)


def class_bias(inspection: Inspection) -> tuple[str, ...]:
    """Return the stored head bias unless it is all zero."""
    bias = inspection.head.output_bias
    if bias is None or bias.state in (BiasState.ABSENT, BiasState.ZERO):
        return ()
    return (bias.name,)


def stored_bias(inspection: Inspection) -> tuple[str, ...]:
    """Return the stored head bias, zero or not."""
    bias = inspection.head.output_bias
    return () if bias is None or bias.state is BiasState.ABSENT else (bias.name,)


def flags_agree(inspection: Inspection) -> bool | None:
    """Return the tie flag if every level of the config declares the same value, else ``None``."""
    values = [entry.value for entry in inspection.config.declared]
    for flag in (True, False):
        if values and all(value is flag for value in values):
            return flag
    return None


# Build the `Loaded` of a loader that knows only an embedding and a head: two parameters, or one.
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

    def without_head(self) -> Loaded:
        """Return two parameters, the head without its stored values."""
        loaded, head = self.untied(), self.pair.head
        return replace(loaded, parameters={**loaded.parameters, head: Parameter(None, head, self.absence)})

    def undeclared_rows(self, loaded: Loaded) -> Iterator[Refusal]:
        """Yield the refusal of a table that ``loaded`` reads, and whose rows the config does not declare."""
        read = {parameter.stored for parameter in loaded.parameters.values()} | set(loaded.in_order)
        tables = (name for name in (self.pair.embedding, self.pair.head) if name in read)
        refusal = undeclared_rows(self.inspection, {name: row_count(self.inspection, name) for name in tables})
        if refusal is not None:
            yield refusal

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
        discarded = tuple(name for name in stored if name not in used)
        undecided = both if compare and len(self._stored_tables()) > 1 and pair.same is None else None
        loaded = Loaded(self.loader, names, parameters, discarded=discarded, undecided=undecided, remark=remark)
        return replace(loaded, in_order=both) if in_order and pair.same is False else loaded

    def _stored_tables(self) -> tuple[str, ...]:
        held = ((self.pair.head, self.pair.has_head), (self.pair.embedding, self.pair.has_embedding))
        return tuple(name for name, stored in held if stored)


# Compare the rows of the stored tables with the config, by which a loader makes its parameters.
def wrong_rows(inspection: Inspection) -> Refusal | None:
    """Return the refusal of a table if its row count differs from each vocabulary size of the config.

    Loaders make a parameter of ``vocab_size`` rows and refuse to copy a tensor of another shape into it. The same holds
    for its width, the hidden size.
    """
    return undeclared_rows(inspection, effective_flag.vocabulary_rows(inspection))


def wrong_sizes(inspection: Inspection) -> Refusal | None:
    """Return the refusal of a matrix that does not fit a size in the config. transformers fails to load it."""
    problem, names = effective_flag.unfit_tensors(inspection)
    return Refusal(Cause.SHAPES, problem, (names[0],)) if names else None


def without_padding(inspection: Inspection, version: str) -> Refusal | None:
    """Return why transformers does not build the class with its padding token, or may not: the token has no row."""
    padding = next((item for item in effective_flag.tokens_without_row(inspection) if "pad" in item[0]), None)
    measured = version == "5.x"  # 5.0 to 5.3 were not run
    refuses = refuses_padding(inspection)
    if padding is None or (measured and refuses is False):
        return None
    sentence = f"{shown(padding[0])} is {padding[1]:,}, for which the embedding has no row"
    if measured and refuses:
        return Refusal(Cause.CONFIG, f"transformers 5.23 does not build the class, because {sentence}")
    return unknown(f"{sentence}, and most classes are not built so")


def refuses_padding(inspection: Inspection) -> bool | None:
    """Return whether transformers 5.23 refuses a padding token without a row; ``None`` if that was not measured."""
    named = inspection.family.architecture
    if named in release_tables.names("transformers-5", "refuses padding"):
        return True
    return False if named in release_tables.names("transformers-5", "takes padding") else None


def undeclared_rows(inspection: Inspection, tables: Mapping[str, int]) -> Refusal | None:
    """Return the refusal of the first of ``tables``, names with their rows, whose rows the config does not declare."""
    sizes = effective_flag.vocabulary_sizes(inspection)
    for name, rows in tables.items() if sizes else ():
        if rows not in sizes.values():
            path, size = next(iter(sizes.items()))
            sentence = f"{shown(name)} has {rows:,} rows, and the config declares {shown(path)} {size:,}"
            return Refusal(Cause.SHAPES, sentence, (name,))
    return undeclared_width(inspection, tables)


def undeclared_width(inspection: Inspection, names: Iterable[str]) -> Refusal | None:
    """Return the refusal of the first float matrix of ``names`` with another width than the config declares."""
    tensors = inspection.checkpoint.tensors
    for name in names:
        shape = tensors[name].shape if quantised_twin(name, tensors) is None else ()
        width = effective_flag.undeclared_width(inspection, shape[1]) if len(shape) == 2 else None
        if width is not None:
            sentence = f"{shown(name)} has {shape[1]:,} columns, and the config declares {shown(width[0])} {width[1]:,}"
            return Refusal(Cause.SHAPES, sentence, (name,))
    return None


def row_count(inspection: Inspection, name: str) -> int:
    """Return the rows of a stored tensor; 0 for a scalar."""
    return next(iter(inspection.checkpoint.tensors[name].shape), 0)


def layers_refused(
    inspection: Inspection, pair: Pair, is_missed: Callable[[str], bool] = bool, *, drops_surplus: bool = False
) -> Iterator[Refusal]:
    """Yield what a strict loader of language models says of missing and surplus layers, and of a missing last norm.

    Such loaders drop the tensors of images and sounds. Classes whose layers differ may drop surplus ones: no claim.
    ``is_missed`` says whether the loader looks for a name, or for a layer's.
    """
    parent = pair.embedding.removesuffix(".weight").rpartition(".")[0]
    own = re.compile(rf"{re.escape(f'{parent}.' if parent else '')}(\w+\.\d+|[^.]+\.)[^.]*")
    for lack in missing_layers(inspection):
        absent = [name for name in lack.names if own.match(name)]
        if any(map(is_missed, absent)):
            yield missing(absent)
    for _, names, alike in () if drops_surplus else surplus_layers(inspection):
        if alike and own.match(names[0]):
            yield Refusal(Cause.NAMES, f"the model class has no layer {in_words(names)}", tuple(names))


# List the tied groups of an architecture for a loader, also those without a stored name.
@record
class Group:
    """Names that the class can make one parameter: those in the table, and the member of the file for each."""

    role: Role
    names: tuple[str, ...]
    members: tuple[Member, ...]
    gated: bool
    declared: bool


def groups(inspection: Inspection) -> Iterator[Group]:
    """Yield every group of the architecture, in the order of the table."""
    checkpoint = inspection.checkpoint
    # A graph has its own ties, which may differ from those of the class.
    tensors = checkpoint.tensors if checkpoint.format != "onnx" else {}
    ties = iter(inspection.ties)
    gated = next((tie.declared for tie in inspection.ties if tie.gated), inspection.config.effective)
    for group in inspection.family.groups:
        names = (group.canonical, *group.members)
        if any(in_file(inspection, name) in tensors for name in names):
            tie = next(ties)
            yield Group(group.role, names, tie.members, group.gated, tie.declared)
        else:
            absent = tuple(Member(in_file(inspection, name), False, Absent()) for name in names)
            yield Group(group.role, names, absent, group.gated, gated if group.gated else True)


def file_names(inspection: Inspection) -> dict[str, str]:
    """Map each name of the architecture's groups, embedding, head and head biases to its name in the file."""
    family = inspection.family
    names = {
        name: member.name
        for group in groups(inspection)
        for name, member in zip(group.names, group.members, strict=True)
    }
    for name in (family.input_embedding, family.output_head, *family.output_biases):
        if name is not None and name not in names:
            names[name] = in_file(inspection, name)
    return names


def before_ties(inspection: Inspection, release: str) -> dict[str, Parameter]:
    """Return the parameters by their names in the file, before any tie."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    biases = {name for group in groups(inspection) if group.role is Role.OUTPUT_BIAS for name in group.names}
    biases.update(family.output_biases)
    unset = Absence.UNSET if family.text_class in release_tables.names(release, "unset bias") else Absence.ZERO
    return {
        stored: Parameter(stored, stored)
        if stored in tensors
        else Parameter(None, stored, unset if name in biases else Absence.RANDOM)
        for name, stored in file_names(inspection).items()
    }


def discarded(inspection: Inspection, parameters: Mapping[str, Parameter], unread: Iterable[str]) -> tuple[str, ...]:
    """Return the stored names, also the ``unread`` ones, whose values none of ``parameters`` gets."""
    used = {parameter.stored for parameter in parameters.values()}
    stored = [name for name in parameters if name in inspection.checkpoint.tensors]
    return tuple(name for name in (*stored, *sorted(unread)) if name not in used)


def head_factor(inspection: Inspection, meaning: FlagMeaning, default: bool) -> float:
    """Return the factor of the head in the forward pass; 1 if the flag decides only about storage."""
    if meaning is FlagMeaning.STORAGE:
        return 1.0
    config = effective_flag.text_config(inspection)
    declared = effective_flag.levels(inspection).get(inspection.family.text_level, config.get(effective_flag.FLAG))
    on = default if declared is None else bool(declared)
    if meaning is FlagMeaning.DERIVES and effective_flag.DERIVED_KEY in config:
        on = bool(config[effective_flag.DERIVED_KEY])
    width = config.get("d_model")
    return float(width) ** -0.5 if on and isinstance(width, int) and width > 0 else 1.0


def misshapen(inspection: Inspection) -> str | None:
    """Return a stored name whose shape does not fit the first one of its group. Loaders refuse such a model."""
    tensors, two_sizes = inspection.checkpoint.tensors, two_vocabularies(inspection)
    for group in groups(inspection):
        stored = [member.name for member in group.members if member.stored]
        compared = [name for name in stored if not (two_sizes and "encoder" in name.split("."))]
        misfit = next((name for name in compared if not fits(tensors[name], tensors[compared[0]])), None)
        if misfit is not None:
            return misfit
    return None


def two_vocabularies(inspection: Inspection) -> bool:
    """Return whether the config gives the encoder a separate vocabulary, as FSMT's can."""
    if inspection.family.text_type not in release_tables.names("transformers-5", "two vocabularies"):
        return False
    config = effective_flag.text_config(inspection)
    both = (config.get("src_vocab_size"), config.get("tgt_vocab_size"))
    return None not in both and both[0] != both[1]


def bias_group(inspection: Inspection) -> Group | None:
    """Return the group of the two names of the head bias, or ``None``."""
    return next((group for group in groups(inspection) if group.role is Role.OUTPUT_BIAS), None)


def is_zero(inspection: Inspection, name: str) -> bool:
    """Return whether ``name`` is the head bias of the inspection and is all zero."""
    bias = inspection.head.output_bias
    return bias is not None and bias.name == name and bias.state is BiasState.ZERO


# Say whether two stored tensors are equal once a loader has cast both to one dtype.

_COARSER = {"F16": 1 << 13, "BF16": 1 << 16}
"""float32 steps in one step of a narrower type: copies with a larger difference stay different after rounding."""


def equal_members(inspection: Inspection, first: Member, second: Member, dtype: str | None) -> bool | None:
    """Return whether two members of one group are equal in ``dtype``, ``None`` if their comparison does not decide.

    ``dtype`` is the name in a safetensors header (``"BF16"``), or ``None`` if it is unknown.
    """
    if State.CANONICAL not in (first.state, second.state):
        equal = [_as_reference(inspection, member, dtype) for member in (first, second)]
        if None in equal or not any(equal):
            return None
        return all(equal)
    return _as_reference(inspection, second if first.state is State.CANONICAL else first, dtype)


def _as_reference(inspection: Inspection, member: Member, dtype: str | None) -> bool | None:
    """Return whether a stored member equals the group's reference by value; ``None`` if that is not decided."""
    match member.relation:
        case Canonical() | Aliased() | proved.Identical():
            return not member.relation.holds_nan
        case proved.Cast() if member.relation.is_lossless_cast or member.relation.holds_nan:
            return member.relation.is_lossless_cast
        case proved.Cast(narrow=narrow) if dtype is not None:
            return dtype == inspection.checkpoint.tensors[narrow].dtype
        case proved.Unread() | proved.Cast():
            return None
        case proved.Near(figures=figures) | proved.Different(figures=figures) if figures.sign_of_zero_only:
            return True
        case proved.Near(figures=figures) if (
            inspection.checkpoint.tensors[member.name].dtype == "F32" and dtype in _COARSER
        ):
            may_round_to_equal = figures.max_ulp is None or figures.max_ulp < _COARSER[dtype]
            return None if may_round_to_equal else False
        case proved.Transposed() | proved.Scaled() | proved.Empty() | proved.OtherShape() | Absent():
            return False
        case proved.Near() | proved.Different() | proved.OtherBytes() | proved.OtherSample():
            return False
    assert_never(member.relation)


# Reduce an inspection to the stored names that a loader knows.
def in_unlisted_shards(inspection: Inspection) -> frozenset[str]:
    """Return the tensors of shards that the index does not name. A loader that opens the named shards misses them."""
    index, cautions = inspection.checkpoint.index, inspection.checkpoint.cautions
    if index is None or not any(caution.code == "index.extra-tensor" for caution in cautions):
        return frozenset()
    listed = set(weight_map(index).values())
    files = (file for file in inspection.checkpoint.files if file.name not in listed)
    return frozenset(tensor.name for file in files for tensor in file.tensors)


def without_tensors(inspection: Inspection, unread: Collection[str]) -> Inspection:
    """Return ``inspection`` without the tensors named in ``unread``."""
    if not unread:
        return inspection
    files = tuple(
        replace(file, tensors=tuple(tensor for tensor in file.tensors if tensor.name not in unread))
        for file in inspection.checkpoint.files
    )
    checkpoint = replace(inspection.checkpoint, files=files)
    ties = (_tie(tie, unread, inspection.family, checkpoint.tensors) for tie in inspection.ties)
    stored_ties = tuple(tie for tie in ties if tie.stored_members)
    return replace(inspection, checkpoint=checkpoint, head=_head(inspection.head, unread), ties=stored_ties)


def _head(head: Head, unread: Collection[str]) -> Head:
    bias, table, embedding = head.output_bias, head.output_head, head.input_embedding
    if bias is not None and bias.name in unread:
        head = replace(head, output_bias=OutputBias(bias.name, BiasState.ABSENT))
    if table is not None and table.name in unread:
        head = replace(head, output_head=replace(table, stored=False))
    return replace(head, input_embedding=None) if embedding is not None and embedding.name in unread else head


def _tie(tie: Tie, unread: Collection[str], family: Family, stored: Collection[str]) -> Tie:
    members = tuple(_member(member, family, stored) if member.name in unread else member for member in tie.members)
    canonical = members[next(index for index, member in enumerate(tie.members) if member.name == tie.canonical)]
    is_stored = tie.canonical_stored and canonical.stored
    return replace(tie, members=_referred(members), canonical=canonical.name, canonical_stored=is_stored)


def _member(member: Member, family: Family, stored: Collection[str]) -> Member:
    """Return the absent member under its name in the table, by which the loader misses it."""
    by_memory = {memory: name for name, memory in family.renames}
    names = [name for group in family.groups for name in (group.canonical, *group.members)]
    name = member.loads_as if member.loads_as in names else by_memory.get(member.name, member.name)
    if name not in names:
        name = next((known for known in names if locate(family, known, (name,)) is not None), name)
    return Member(spelled(family, name, stored), False, Absent())


def _referred(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Return the members with a new reference, the first stored one. Only relations to equal members stay known."""
    stored = [index for index, member in enumerate(members) if member.stored]
    if not stored or any(members[index].state is State.CANONICAL for index in stored):
        return members
    first = stored[0]
    equal = same(members[first])
    referred = list(members)
    referred[first] = replace(members[first], relation=Canonical())
    for index in stored[1:]:
        if not (equal and same(members[index])):
            referred[index] = replace(members[index], relation=proved.Unread())
    return tuple(referred)


# Say why a loader does not reach the tensors of a model, or why tieconv makes no claim about them.

SAFETENSORS, TORCH = "safetensors", "torch"


def unclear_files(inspection: Inspection, *clear: str) -> Refusal | None:
    """Return why tieconv cannot tell which files are the model, or ``None``.

    ``clear`` are codes of cautions that do not matter to this loader. A missing index never matters.
    """
    checkpoint = inspection.checkpoint
    if checkpoint.format == "gguf":
        return unknown("GGUF files are for llama.cpp and the programs that use it")
    if checkpoint.adapter is not None:
        return unknown("the model is an adapter, and its base model decides")
    codes = BLOCKING.keys() - {"index.absent", *clear}
    blocking = next((caution for caution in checkpoint.cautions if caution.code in codes), None)
    if blocking is not None:
        return unknown(f"tieconv cannot tell which files are the model: {shown(blocking.message)}")
    if checkpoint.config is None or checkpoint.config.name != "config.json":
        return Refusal(Cause.FILES, "there is no config.json next to the weights")
    return None


def unclear_class(inspection: Inspection, *, codes: bool = False) -> Refusal | None:
    """Return why tieconv cannot tell how the class uses its tensors, or ``None``.

    ``codes`` says that the loader reads the names and the codes of MLX.
    """
    family = inspection.family
    if family.tying is Tying.HEADLESS or (family.knowledge is Knowledge.TABLE and family.output_head is None):
        return unknown("the architecture has no output head by design")
    if family.knowledge is not Knowledge.TABLE:
        return unknown(f"tieconv has no measurement of {_class_name(family)}")
    if family.mlx_names and not codes:
        return unknown("mlx-lm or mlx-vlm named the tensors, and tieconv has no measurement of this loader for that")
    if names := unexplained(inspection):
        return unknown(f"{shown(names[0])} may be part of the head or embedding, and tieconv does not know its form")
    if family.pieces:
        return unknown("the file stores the input embedding as several tensors")
    tables = () if codes else (name for name in (family.input_embedding, family.output_head) if name)
    for name in tables:
        if quantised_twin(in_file(inspection, name), inspection.checkpoint.tensors) is not None:
            return unknown(f"{shown(name)} is stored as quantised codes")
    return None


def wrong_format(inspection: Inspection, loader: str, formats: Collection[str]) -> Refusal | None:
    """Return why the loader does not read files of this format, or ``None``."""
    checkpoint = inspection.checkpoint
    if checkpoint.format not in formats:
        return Refusal(Cause.FILES, f"{loader} reads {' and '.join(formats)} files, not {shown(checkpoint.format)}")
    if checkpoint.layout is Layout.FILE:
        return unknown(f"{loader} loads a model directory, not a single file")
    return None


def known_pair(
    inspection: Inspection, loader: str, release: str, model_type: str | None = None
) -> tuple[str, Pair] | Refusal:
    """Return the table of ``release`` that lists the model's class or ``model_type``, and the embedding and head.

    The refusal says that tieconv has no data about the loader and the class.
    """
    family = inspection.family
    kind = release_tables.kind(release, family.architecture if model_type is None else model_type)
    pair = head_pair(inspection)
    if kind is not None and pair is not None:
        return kind, pair
    if model_type is None:
        return unmeasured(inspection, loader)
    return unknown(f"tieconv has no measurement of {loader} for models {with_type(family.model_type, 'of type')}")


def unmeasured(inspection: Inspection, loader: str) -> Refusal:
    """Return the refusal of a claim about a class that tieconv did not load with ``loader``."""
    return unknown(f"tieconv has no measurement of {loader} for {_class_name(inspection.family)}")


def _class_name(family: Family) -> str:
    kind = f" {with_type(family.model_type)}" if family.since and family.model_type else ""
    return f"{shown(family.architecture)}{kind}" if family.architecture else "a config without a class"


# Say whether a loader that reads every file with a matching name finds the weights of a directory.
def by_pattern(
    inspection: Inspection,
    loader: str,
    formats: Sequence[str],
    *patterns: str,
    indexed: bool = False,
    prefers: bool = False,
    joined: bool = False,
    codes: bool = False,
) -> Refusal | None:
    """Return why the loader does not reach the tensors, or may read other files; ``None`` if it reads these.

    ``indexed`` says that it skips files that an index of the usual name does not list. ``prefers`` says that it reads
    only the first of ``formats``, with the first of ``patterns``, if a directory has several. ``joined`` says that the
    caller adds the tensors of the unused files (`with_unused_files`). ``codes`` says that it reads quantised tables.
    """
    settled = prefers and inspection.checkpoint.format == formats[0]
    patterns = patterns[:1] if settled else patterns
    refusal = unclear_files(inspection, *((TWO_FORMATS,) if settled else ()))
    if refusal is None and is_directory(inspection, formats):
        checkpoint = inspection.checkpoint
        names = [file.name for file in checkpoint.files]
        missed = [name for name in names if not _matches(name, patterns)]
        sought = f"{loader} looks for {in_words(patterns)}"
        if missed == names:
            refusal = Refusal(Cause.FILES, f"{sought} and finds no weights: the directory contains {shown(names[0])}")
        elif missed:
            refusal = unknown(f"{sought} and does not read {shown(missed[0])}")
        elif checkpoint.entry is None and not checkpoint.complete:
            refusal = unknown("a shard is missing: the names of the other shards count it")
        refusal = refusal or _doubled(inspection, loader, patterns, indexed, joined=joined)
    refusal = refusal or unclear_class(inspection, codes=codes) or wrong_format(inspection, loader, formats)
    return refusal or _prefixed_again(inspection, loader)


def is_directory(inspection: Inspection, formats: Collection[str]) -> bool:
    """Return whether the model is a directory of weights in one of ``formats``."""
    checkpoint = inspection.checkpoint
    return checkpoint.layout is not Layout.FILE and checkpoint.format in formats


def _prefixed_again(inspection: Inspection, loader: str) -> Refusal | None:
    """Return the refusal for a name that has the prefix of the base model twice, or ``None``."""
    start, pair = f"{inspection.family.prefix}.", head_pair(inspection)
    names = (pair.embedding, pair.head) if pair is not None else ()
    doubled = next((name for name in names if name.startswith((start + start, "."))), None)
    if doubled is None:
        return None
    return unknown(f"{shown(doubled)} has the prefix twice, and tieconv has no measurement of {loader} for that")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def with_unused_files(inspection: Inspection, *patterns: str) -> Inspection:
    """Return ``inspection`` with the files that the model does not use and the loader reads, by their names."""
    orphans = tuple(file for file in inspection.checkpoint.orphans if _matches(file.name, patterns))
    if not orphans:
        return inspection
    checkpoint = replace(inspection.checkpoint, files=(*orphans, *inspection.checkpoint.files))
    return replace(inspection, checkpoint=checkpoint)


def _doubled(
    inspection: Inspection, loader: str, patterns: Sequence[str], indexed: bool, joined: bool
) -> Refusal | None:
    """Return the refusal if the loader also reads an unused file that may hold another embedding or head.

    ``joined`` says that a tensor that only the unused file holds is part of the model.
    """
    checkpoint, pair = inspection.checkpoint, head_pair(inspection)
    if pair is None or (indexed and checkpoint.index is not None and checkpoint.entry in OPENED):
        return None
    equal = {(shadow.name, shadow.file) for shadow in inspection.shadows if shadow.differs is False}
    for file in checkpoint.orphans:
        names = {tensor.name for tensor in file.tensors} & {pair.embedding, pair.head}
        names = names & checkpoint.tensors.keys() if joined else names
        doubled = next((name for name in sorted(names) if (name, file.name) not in equal), None)
        if doubled is not None and _matches(file.name, patterns):
            return unknown(f"{shown(file.name)} also contains {shown(doubled)}, and {loader} reads both files")
    return None
