"""Predict transformers 4: it ties by the flag alone, under the embedding's name, whatever is stored.

From `tie_weights` and `_load_pretrained_model` of transformers 4.48.3 and 4.57.6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tieconv.architectures.effective_flag import cannot_build, reading_v4
from tieconv.architectures.stored_names import known_names, locate
from tieconv.checkpoint.family import Family, Role, Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import Member
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.loaded import Absence, Cause, Loaded, Parameter, Refusal, unknown
from tieconv.loaders.transformers_files import by_name
from tieconv.text import shown, with_type

_EQUAL = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED})


def load(inspection: Inspection, version: str) -> Loaded:
    """Return the model in transformers ``version``, `4.48` or `4.57`."""
    family, stored = inspection.family, inspection.checkpoint.tensors
    # transformers 4 reads no tensor that the index does not list, and transformers 5 all of a listed shard.
    cautions = (caution for caution in inspection.checkpoint.cautions if caution.code == "index.extra-tensor")
    unknown_names = unread(family, stored, version) | frozenset(
        name for caution in cautions for name in caution.tensors
    )
    read = evidence.without_tensors(inspection, unknown_names)
    parameters = evidence.before_ties(read, f"transformers-{version}")
    open_pairs = [_tie(read, group, parameters, version) for group in evidence.groups(read)]
    head, embedding = (
        evidence.in_file(read, name) if name else "" for name in (family.output_head, family.input_embedding)
    )
    if ties_alone(read, version):
        source = parameters[embedding]
        absence = None if source.stored else Absence.UNSET
        parameters |= {name: Parameter(source.stored, embedding, absence) for name in (head, embedding)}
    if head in parameters:
        factor = evidence.head_factor(read, family.meaning_v4, bool(family.default_v4))
        parameters[head] = replace(parameters[head], factor=factor)
    discarded = evidence.discarded(read, parameters, unknown_names)
    refusals, undecided = tuple(_refusals(inspection, read, version)), next(filter(None, open_pairs), None)
    loaded = Loaded(f"transformers {version}", evidence.file_names(read), parameters, unread=unknown_names)
    return replace(
        loaded, discarded=discarded, refusals=refusals, in_order=_in_order(read, version), undecided=undecided
    )


def _tie(
    inspection: Inspection, group: evidence.Group, parameters: dict[str, Parameter], version: str
) -> tuple[str, str] | None:
    """Set the values of one group's names. Return a stored pair that becomes one parameter and was not compared."""
    if group.role is Role.OUTPUT_BIAS:
        _tie_biases(inspection, group, parameters, version)
        return None
    members, undecided = group.members, None
    stored = [member.stored for member in members]
    # Of the stored tables that are not the head, the one that is last in the files.
    names = [member.name for member in members]
    order = {name: index for index, name in enumerate(inspection.checkpoint.tensors)}
    head = inspection.family.output_head
    readable = [index for index, name in enumerate(names) if name in order and group.names[index] != head]
    last_table = max(readable, key=lambda index: order[names[index]], default=None)
    tied = is_tied(inspection, group)
    taken = sources(inspection.family, group.names, stored, version, tied=tied, last_table=last_table)
    source = members[group.names.index(source_name(inspection.family, group.names, version))].name
    if tied and version == "4.48":
        taken = as_copied(inspection, group.names, members, taken, source)
    for own, (member, index) in enumerate(zip(members, taken, strict=True)):
        if index is None or index == NO_VALUES:
            random = Parameter(None, member.name, Absence.RANDOM)
            parameters[member.name] = random if index is None else Parameter(None, source, Absence.UNSET)
            continue
        base = members[index]
        parameters[member.name] = Parameter(base.name, base.name)
        if index != own or len(set(taken)) < len(taken):
            undecided = undecided or _not_compared(base, member)
    return undecided if group.role is Role.WORD_EMBEDDING else None


def _not_compared(base: Member, member: Member) -> tuple[str, str] | None:
    if State.UNREAD not in (base.state, member.state):
        return None
    return (base.name, member.name) if member.state is State.UNREAD else (member.name, base.name)


def is_tied(inspection: Inspection, group: evidence.Group) -> bool:
    """Return whether a group is tied. For the head, the flag decides in every class."""
    family, flag = inspection.family, reading_v4(inspection)
    if flag is None or family.tying is Tying.NEVER:
        return group.declared
    return flag if family.output_head in group.names else flag or not group.gated


def _in_order(inspection: Inspection, version: str) -> tuple[str, ...]:
    """Return the stored tables, not all equal, if the last one that is read stays."""
    head = inspection.head.output_head
    for tie in inspection.ties if last_wins(inspection.family, version) else ():
        stored = [member for member in tie.stored_members if head is None or member.name != head.name]
        if tie.role is Role.WORD_EMBEDDING and any(member.state not in _EQUAL for member in stored):
            return tuple(member.name for member in stored) if len(stored) > 1 else ()
    return ()


def _tie_biases(inspection: Inspection, group: evidence.Group, parameters: dict[str, Parameter], version: str) -> None:
    """Give both names of the head bias the values that reach the logits.

    Release 4.48 sets the whole head module to zero if one of its names counts as missing. With a missing embedding it
    does not. Measured with torch 2.13.
    """
    outer, inner = group.members[0], group.members[-1]
    prefers_inner = inspection.family.text_type in release_tables.names(f"transformers-{version}", "inner bias")
    pair = evidence.head_pair(inspection)
    if version == "4.48" and (pair is None or not pair.has_embedding):
        order: tuple[Member, ...] = (inner, outer)
    elif version == "4.48":
        order = (inner,) if prefers_inner else (outer,)
    else:
        order = (inner, outer) if prefers_inner else (outer,)
    used = next((member for member in order if member.stored), None)
    left = version == "4.57" and any(member.stored for member in group.members)
    for member in group.members:
        if used is not None:
            parameters[member.name] = Parameter(used.name, used.name)
        else:
            absence = Absence.UNSET if left else parameters[member.name].absence or Absence.ZERO
            parameters[member.name] = Parameter(None, outer.name, absence)


def _refusals(inspection: Inspection, read: Inspection, version: str) -> Iterator[Refusal]:
    """Yield why the release fails, in its order. ``read`` is the inspection without the names that it does not know."""
    files = by_name(read, configured=version != "4.48")
    if files is not None:
        yield files
    for file in inspection.checkpoint.files if inspection.checkpoint.format == evidence.SAFETENSORS else ():
        if file.refused_format is not None:
            entry = f"the format {shown(file.refused_format)}" if file.refused_format else 'no "format" entry'
            sentence = f"transformers 4 cannot load {shown(file.name)}: its metadata has {entry}"
            yield Refusal(Cause.METADATA, sentence)
    yield from unclear_model(read, version)
    family = inspection.family
    name = corrupt(family, inspection.checkpoint.tensors, version)
    if name is not None:
        stored = f"it has {shown(name)}, and none of its names starts with {shown(f'{family.prefix}.')}"
        yield Refusal(Cause.NAMES, f"transformers 4 treats the file as corrupted: {stored}", (name,))
    # A refusal for tied tables of two vocabularies, which were not measured.
    if reading_v4(read) and evidence.two_vocabularies(read):
        yield unknown("encoder and decoder have separate vocabularies, and tieconv has no measurement of tying them")
    if inspection.checkpoint.config_values.get("tie_encoder_decoder") is True:
        yield unknown("tieconv does not know which tensors transformers 4 shares for tie_encoder_decoder")
    nested = "text_config" in inspection.checkpoint.config_values
    if nested and family.model_type in release_tables.names(f"transformers-{version}", "flat config"):
        sentence = f"the {shown(family.model_type)} config of transformers {version} has no text_config"
        yield Refusal(Cause.CONFIG, sentence)
    misfit = None if family.misfit and not reading_v4(inspection) else evidence.misshapen(read)
    if misfit is not None:
        sentence = f"{shown(misfit)} and the tensor that it is tied to have different shapes"
        yield Refusal(Cause.SHAPES, sentence, (misfit,))
    # Why the answer depends on tensors that were not compared, or on a case that was not measured.
    if ties_alone(read, version) or (reading_v4(read) and cannot_build(read)):
        yield unknown("only transformers 4 ties the head, and tieconv did not compare it with the embedding")
    if version == "4.48" and _lacks_tables(read):
        yield unknown("tieconv cannot explain how transformers 4.48 loads these tables if one is missing")
    if version == "4.48" and copies_in_place(read) is None and reading_v4(read):
        # The refusal of a copy that is rounded, if the copy that stays is unknown.
        members = [member for tie in read.ties for member in tie.stored_members]
        copy = next((member for member in members if member.state is State.CAST and not evidence.same(member)), None)
        if copy is not None:
            sentence = f"{shown(copy.name)} is a rounded copy, and tieconv has no measurement of which copy 4.48 uses"
            yield unknown(sentence)


# Say when tieconv makes no claim about transformers 4.
def unmeasured_448(family: Family) -> bool:
    """Return whether a class was not measured with transformers 4.48, although that release may have its type."""
    return family.unlisted or (family.part is not None and not family.part.usual)


def has_class_448(family: Family) -> bool:
    """Return whether transformers 4.48 has the class and the class was measured."""
    return not unmeasured_448(family) and family.model_type in release_tables.names("transformers-4.48", "types")


def ties_alone(inspection: Inspection, version: str) -> bool:
    """Return whether the flag ties the head in this release and not in transformers 5."""
    listed = inspection.family.text_class in release_tables.names(f"transformers-{version}", "head tied here alone")
    return listed and bool(reading_v4(inspection))


def unclear_model(inspection: Inspection, version: str) -> Iterator[Refusal]:
    """Yield why tieconv cannot tell how the release loads such a model, whatever its names are."""
    family = inspection.family
    for file in inspection.checkpoint.files if inspection.checkpoint.format == evidence.SAFETENSORS else ():
        framework = (file.metadata or {}).get("format")
        if framework in ("tf", "flax"):
            yield unknown(
                f"{shown(file.name)} was written by {framework}, and transformers 4 needs {framework} to read it"
            )
    if reading_v4(inspection) is None or (version == "4.48" and not has_class_448(family)):
        yield _without_class(inspection, version)
    if evidence.head_pair(inspection) is None:
        yield unknown("the architecture table does not name both the embedding and the head")
    if _listed(family.model_type, version, "not understood"):
        yield unknown(f"tieconv cannot explain how transformers {version} loads {shown(family.architecture)}")


def _without_class(inspection: Inspection, version: str) -> Refusal:
    """Return the refusal of a class that the release lacks, or that was not measured with it."""
    family = inspection.family
    if version == "4.48" and unmeasured_448(family):
        part = f" with a text part of type {shown(family.part.model_type)}" if family.part is not None else ""
        return unknown(f"tieconv has no measurement of transformers 4.48 for {shown(family.architecture)}{part}")
    sentence = f"transformers {version} has no model {with_type(family.model_type, 'of type')}"
    if "auto_map" in inspection.checkpoint.config_values:
        return unknown(f"{sentence}, and the model has code that tieconv does not run")
    return Refusal(Cause.CLASS, sentence)


def _lacks_tables(inspection: Inspection) -> bool:
    """Return whether some of the tables are missing that BART-like classes share on construction."""
    pair = evidence.head_pair(inspection)
    tied = bool(reading_v4(inspection)) and inspection.family.tying is not Tying.NEVER
    tables = [group.members for group in evidence.groups(inspection) if group.role is Role.WORD_EMBEDDING]
    if not tied and _listed(inspection.family.text_type, "4.48", "not understood untied"):
        return any(not members[0].stored for members in tables)
    if not inspection.family.bias_is_row or pair is None:
        return False
    if tied:
        return not pair.has_embedding and bool(evidence.stored_bias(inspection))
    return pair.has_head and not all(member.stored for members in tables for member in members)


def _listed(name: str, version: str, table: str) -> bool:
    return name in release_tables.names(f"transformers-{version}", table)


# Map each tied parameter to the stored tensor that transformers 4 loads into it.
#
# Measured with 4.48.3 and 4.57.6 and each of their classes in the table. Every set of names of the word embeddings
# was stored, each tensor filled with a different number. The flag was true, false and absent.

NO_VALUES = -1
"""The parameter has no values: the loader moved nothing into its memory."""


def _of_type(family: Family, version: str, table: str) -> bool:
    return family.text_type in release_tables.names(f"transformers-{version}", table)


def last_wins(family: Family, version: str) -> bool:
    """Return whether several stored tables become one parameter, with the table that is read last."""
    return _of_type(family, version, "last table wins")


def _gives_its_table(family: Family, version: str) -> bool:
    return family.model_type in release_tables.names(f"transformers-{version}", "gives its table")


def sources(
    family: Family,
    names: Sequence[str],
    stored: Sequence[bool],
    version: str,
    *,
    tied: bool,
    last_table: int | None = None,
) -> tuple[int | None, ...]:
    """Return for each of ``names`` the index of the name whose stored values it gets, ``None`` for random values.

    ``names`` are those in the architecture table, the canonical one first. ``last_table`` is the index of the last
    table in the file; the head does not count.
    """
    own = _own(family, names, stored, version, last_table)
    tied = (tied or _of_type(family, version, "always tied")) and not _of_type(family, version, "never tied")
    if not tied and _of_type(family, version, "head is decoder's table"):
        # The sources if the decoder's table and the head are one parameter, with the head's values.
        decoder = [index for index, name in enumerate(names) if "decoder" in name.split(".")]
        head = next(own[index] for index in decoder if names[index].endswith("output_projection.weight"))
        if head is None and version == "4.57" and any(own[index] is not None for index in decoder):
            head = NO_VALUES
        return tuple(head if index in decoder else own[index] for index in range(len(names)))
    if not tied or not any(stored):
        # This class ignores the flag and takes only missing names from the shared table.
        alone = not _gives_its_table(family, version)
        fills = _of_type(family, version, "fills what is missing") and stored[0] and alone
        return tuple(0 if fills and index is None else index for index in own)
    base = _base(family, names, own, version)
    return tuple(base for _ in names)


def source_name(family: Family, names: Sequence[str], version: str) -> str:
    """Return the one of ``names`` whose values the tied names get."""
    start = family.text_start + release_tables.by_type(f"transformers-{version}", "tied to").get(
        family.text_type, names[0]
    )
    return start if start in names else names[0]


def _own(
    family: Family, names: Sequence[str], stored: Sequence[bool], version: str, last_table: int | None
) -> list[int | None]:
    """Return the sources before any tie: each name itself, except for a module that several names share."""
    own: list[int | None] = [index if is_stored else None for index, is_stored in enumerate(stored)]
    if not _of_type(family, version, "one table") and not _gives_its_table(family, version):
        return own
    body = [index for index, name in enumerate(names) if name != family.output_head]
    first = next((index for index in body if stored[index]), None)
    shared = last_table if last_table is not None and last_wins(family, version) else first
    for index in body:
        own[index] = shared
    return own


def _base(family: Family, names: Sequence[str], own: list[int | None], version: str) -> int | None:
    """Return the index of the name whose values the tied names get."""
    source = own[names.index(source_name(family, names, version))]
    if source is not None:
        return source
    if version == "4.57":
        decoder = (index for index, name in enumerate(names) if "decoder" in name.split("."))
        table = next((own[index] for index in decoder if own[index] is not None), None)
        return table if _of_type(family, version, "tied to decoder") and table is not None else NO_VALUES
    body = [own[index] for index, name in enumerate(names) if name != family.output_head and own[index] is not None]
    if body and not _of_type(family, version, "head is decoder's table"):
        return body[0]
    head = own[names.index(family.output_head)] if family.output_head in names else None
    random = release_tables.names(f"transformers-{version}", "random without embedding")
    if head is not None and not {family.architecture, family.text_class} & random:
        return head
    return body[0] if body else None


# Predict whether transformers 4.48 copies stored tensors into the parameters, or makes them the parameters.
#
# From `check_support_param_buffer_assignment` of transformers 4.48.3. The model is tied before it is loaded. If
# tensors are copied, the names of one parameter are written one after the other. The last in the order of the modules
# stays. If they are assigned, the tie after loading gives all names the values of the first.

_RELEASE = "transformers-4.48"
_DTYPE = "F32"
"""The dtype of a model that is loaded without `torch_dtype`."""


def copies_in_place(inspection: Inspection) -> bool | None:
    """Return whether tensors are copied; ``None`` if the first tensor of the class is not known.

    Tensors are assigned if the first file has the first name of the state dict, in the model's dtype.
    """
    family, checkpoint = inspection.family, inspection.checkpoint
    if family.architecture in release_tables.names(_RELEASE, "copied in place"):
        return True
    first = release_tables.by_type(_RELEASE, "first tensor").get(family.architecture or "", family.input_embedding)
    if first is None:
        return None
    stored = checkpoint.tensors.get(evidence.in_file(inspection, first) if first == family.input_embedding else first)
    if stored is None or stored.dtype != _DTYPE:
        return True
    return stored.range.file != min(tensor.range.file for tensor in checkpoint.tensors.values())


def as_copied(
    inspection: Inspection, names: Sequence[str], members: Sequence[Member], taken: Sequence[int | None], source: str
) -> tuple[int | None, ...]:
    """Return ``taken``, the table that each of ``names`` gets, for tensors that are copied or assigned.

    Of copied tables, the last one stays: files come before modules, and the head is the last module. Assigned tables
    leave the tied names random if ``source``, the name that the tie reads, is not stored.
    """
    copied = copies_in_place(inspection)
    tensors, head = inspection.checkpoint.tensors, inspection.family.output_head
    stored = [index for index, member in enumerate(members) if member.name in tensors]
    if copied is None or len(set(taken)) != 1 or not stored:
        return tuple(taken)
    if not copied:
        return tuple(taken) if source in tensors else (None,) * len(names)

    def order(index: int) -> tuple[str, bool, int]:
        return tensors[members[index].name].range.file, names[index] == head, index

    return (max(stored, key=order),) * len(names)


# Find which stored names transformers 4 reads. The table has the names of transformers 5.
#
# From `_load_pretrained_model` and `_get_key_renaming_mapping` of transformers 4.48.3 and 4.57.6. Measured with both
# releases and each of their classes in the table. Embedding and head were stored under every name that `locate`
# accepts.
def unread(family: Family, stored: Collection[str], version: str) -> frozenset[str]:
    """Return the stored names that transformers ``version`` (`4.48` or `4.57`) does not know."""
    reader = _Reader(family, stored, version)
    located = ((name, locate(family, name, stored)) for name in known_names(family))
    return frozenset(spelled for name, spelled in located if spelled is not None and not reader.reads(name, spelled))


def corrupt(family: Family, stored: Collection[str], version: str) -> str | None:
    """Return a stored name of the head for which transformers 4 refuses a file without any prefix, or ``None``."""
    reader = _Reader(family, stored, version)
    if not reader.adds_prefix:
        return None
    names = (locate(family, name, stored) for name in known_names(family) if not name.startswith(reader.start))
    return next((name for name in names if name is not None and not name.startswith(reader.start)), None)


class _Reader:
    """Reads the names of one file as one release does: unchanged, with the prefix added, or with it removed."""

    def __init__(self, family: Family, stored: Collection[str], version: str) -> None:
        release = f"transformers-{version}"
        prefix = release_tables.by_type(release, "prefix").get(family.model_type, family.prefix)
        in_memory = family.model_type in release_tables.names(release, "names in memory")
        self.memory = dict(family.renames) if in_memory else {}
        self.start = f"{prefix}."
        # Without the dot, as in its source.
        prefixed = bool(prefix) and any(name.startswith(prefix) for name in stored)
        expected = bool(prefix) and any(
            self.memory.get(name, name).startswith(self.start) for name in known_names(family)
        )
        self.adds_prefix = expected and not prefixed
        self.drops_prefix = prefixed and not expected

    def reads(self, known: str, name: str) -> bool:
        """Return whether the tensor stored under ``name`` becomes the one that the table calls ``known``."""
        if self.adds_prefix:
            name = self.start + name
        elif self.drops_prefix and not name.startswith(self.start):
            return False
        elif self.drops_prefix:
            name = name.removeprefix(self.start)
        return name in (known, self.memory.get(known))
