"""Predict transformers 5: it ties each declared pair in turn, depending on which of the two the file stores.

From `PreTrainedModel.tie_weights` of transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tieconv.architectures.class_table import newer_release, record
from tieconv.architectures.effective_flag import FLAG, cannot_build, refused_config
from tieconv.architectures.stored_names import known_names, locate, missing_layers, variants
from tieconv.checkpoint.family import Family, FlagMeaning, Role, Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.loaded import Cause, Loaded, Parameter, Refusal, missing, stopped, unknown
from tieconv.loaders.transformers_files import by_name
from tieconv.text import in_words, shown, with_type

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
RELEASE_50 = "transformers-5.0"

Guesses = Mapping[tuple[str, str], bool]


class _UndecidedError(Exception):
    """The comparison does not decide whether two tensors are equal after loading."""


def load(inspection: Inspection) -> Loaded:
    """Return the model in transformers 5, with ``alternatives`` if stored tensors were not compared."""
    loaded = _load(inspection, {}, compares=True)
    return loaded if loaded.undecided is None else replace(loaded, alternatives=tuple(_settled(inspection, loaded, {})))


def _settled(inspection: Inspection, loaded: Loaded, guesses: Guesses) -> Iterator[Loaded]:
    """Yield the possible models: each pair that was not compared is assumed different, then equal."""
    if loaded.undecided is None:
        yield loaded
        return
    for equal in (False, True):
        settled = {**guesses, loaded.undecided: equal}
        yield from _settled(inspection, _load(inspection, settled, compares=True), settled)


def has_unreported_fault(inspection: Inspection) -> bool:
    """Return whether the prediction may be a fault that no rule reports without the predictions."""
    names = unread(inspection.family, inspection.checkpoint.tensors)
    # A class that tieconv does not know may be one of a program that registers its type.
    known = inspection.checkpoint.format in ("safetensors", "torch") and any(
        record(5, name) for name in inspection.config.architectures
    )
    refused = refused_config(inspection) or (known and any(_type_refusals(inspection)))
    return bool(names or cannot_build(inspection) or refused)


def load_50(inspection: Inspection) -> Loaded:
    """Return the model in transformers 5.0 to 5.3, which never tie two stored tensors and accept a flag of null."""
    if inspection.family.since:
        sentence = f"tieconv measured this class and model type only with transformers {inspection.family.since}"
        return stopped("transformers 5", unknown(sentence))
    if inspection.family.text_class in release_tables.names(RELEASE_50, "not loaded"):
        kind = shown(inspection.family.text_class)
        sentence = f"transformers 5.0 did not load the small model of {kind} in our tests"
        return stopped("transformers 5", unknown(sentence))
    flags = [_flag_at(inspection, level) for level in ("", *inspection.family.levels[:1])]
    if flags[0] != flags[-1]:
        sentence = "tieconv does not know which level of the flag transformers 5.0 reads"
        return stopped("transformers 5", unknown(sentence))
    return _load(inspection, {}, compares=False)


def _flag_at(inspection: Inspection, level: str) -> object:
    path = f"{level}.{FLAG}".lstrip(".")
    return next((entry.value for entry in inspection.config.declared if entry.path == path and entry.present), "absent")


def _leaves_untied(inspection: Inspection) -> bool:
    """Return whether transformers 5.0 reads no true flag: it is null, or absent where the class defaults to false."""
    declared = [entry for entry in inspection.config.declared if entry.present]
    untied = inspection.family.text_class in release_tables.names(RELEASE_50, "untied by default")
    return any(entry.value is None for entry in declared) or (untied and not declared)


def _load(inspection: Inspection, guesses: Guesses, *, compares: bool) -> Loaded:
    """Return the model. ``guesses`` decides about pairs that were not compared; without a guess they differ.

    ``compares`` says that the release compares two stored tensors of a tied group.
    """
    unknown_names = unread(inspection.family, inspection.checkpoint.tensors) | evidence.in_unlisted_shards(inspection)
    read = evidence.without_tensors(inspection, unknown_names)
    family, parameters = read.family, evidence.before_ties(read, RELEASE)
    untied = not compares and _leaves_untied(read)
    tied = [group for group in evidence.groups(read) if group.declared and not (untied and group.gated)]
    open_pairs = [_tie(read, group, parameters, guesses, compares=compares) for group in tied]
    pair = [evidence.in_file(read, name) for name in (family.output_head, family.input_embedding) if name]
    if family.output_head:
        # Pop2Piano never ties, and its absent flag scales the logits like that of T5.
        default = family.default_v5 or family.meaning_v5 is FlagMeaning.DERIVES
        factor = evidence.head_factor(read, family.meaning_v5, default)
        parameters[pair[0]] = replace(parameters[pair[0]], factor=factor)
    return Loaded(
        "transformers 5",
        evidence.file_names(read),
        {name: parameters[name] for name in dict.fromkeys((*pair, *parameters))},
        unread=unknown_names,
        discarded=evidence.discarded(read, parameters, unknown_names),
        refusals=tuple(_refusals(inspection, read, compares=compares)),
        undecided=next(filter(None, open_pairs), None),
        remark=remark(read, compares=compares) if len({parameters[name].parameter for name in pair}) > 1 else "",
    )


def _tie(
    inspection: Inspection, group: evidence.Group, parameters: dict[str, Parameter], guesses: Guesses, *, compares: bool
) -> tuple[str, str] | None:
    """Tie the names of one group. Return the first stored pair that was not compared, or ``None``."""
    names = {name: member.name for name, member in zip(group.names, group.members, strict=True)}
    stored = [member.stored for member in group.members]
    undecided = None
    for give, take, both in steps(inspection.family, group.names, stored):
        source, target = parameters[names[give]], parameters[names[take]]
        if both:
            try:
                equal = compares and _equal(inspection, group, source.stored, target.stored, guesses)
            except _UndecidedError as pair:
                undecided, equal = undecided or pair.args, False
            if not equal:
                continue  # both are stored and differ: each stays as it is
            parameters[names[take]] = Parameter(target.stored, source.parameter)
        else:
            parameters[names[take]] = Parameter(source.stored, source.parameter, source.absence)
    return undecided


def _equal(
    inspection: Inspection, group: evidence.Group, first: str | None, second: str | None, guesses: Guesses
) -> bool:
    members = {member.name: member for member in group.members}
    if first == second or first is None or second is None:
        return True
    if (first, second) in guesses:
        return guesses[first, second]
    equal = evidence.equal_members(inspection, members[first], members[second], load_dtype(inspection))
    if equal is None:
        raise _UndecidedError(first, second)
    return equal


def load_dtype(inspection: Inspection) -> str | None:
    """Return the dtype that ``dtype="auto"`` gives, or ``None`` if the config has none."""
    values = inspection.checkpoint.config_values
    named = values.get("dtype") or values.get("torch_dtype")
    return _DTYPES.get(str(named).removeprefix("torch."))


def _refusals(inspection: Inspection, read: Inspection, *, compares: bool) -> Iterator[Refusal]:
    """Yield why the release fails, in its order. ``read`` is the inspection without the names that it does not know."""
    yield from _type_refusals(inspection)
    checkpoint, files = inspection.checkpoint, by_name(inspection)
    refused = config_refusals(inspection, lists=compares)
    if checkpoint.format in ("safetensors", "torch") and checkpoint.adapter is None:
        yield from refused  # whatever the names are
    if files is not None:
        yield files
    yield from refused  # those that did not come first
    yield from flag_refusals(inspection, null=compares)
    # Why tieconv cannot tell which parameter gets a stored tensor.
    family, stored = inspection.family, inspection.checkpoint.tensors
    doubled = twice(family, stored)
    if doubled:
        yield unknown(f"{in_words(doubled)} are names of one parameter, and transformers 5 reads only one of them")
    mistaken = mistakable(family, stored)
    if mistaken is not None:
        unstored, name = map(shown, mistaken)
        yield unknown(f"{unstored} is not stored, and transformers 5 may rename {name} to it")
    misfit = None if read.family.misfit else evidence.misshapen(read)
    if misfit is not None:
        yield Refusal(
            Cause.SHAPES, f"{shown(misfit)} and the tensor that it is tied to have different shapes", (misfit,)
        )
    # It merges the experts of a layer into one tensor. Without one of them it raises RuntimeError, but not without any.
    absent = [name for lack in missing_layers(inspection) if lack.experts for name in lack.names]
    if compares and absent and not inspection.quantisation:
        yield missing(absent)


def _type_refusals(inspection: Inspection) -> Iterator[Refusal]:
    """Yield why `AutoModel` does not find the class of the config's model type."""
    kind, config = inspection.config.model_type, inspection.checkpoint.config_values
    if kind and not inspection.family.trusted and kind not in newer_release()["known"] and "auto_map" not in config:
        release = newer_release()["transformers"]
        yield Refusal(Cause.CLASS, f"transformers {release} has no model {with_type(kind, 'of type')}")
    if not kind and inspection.config.architectures and "auto_map" not in config:
        implied = inspection.family.model_type if inspection.family.trusted else ""
        edit = f': add "model_type": "{implied}" to config.json by hand' if implied else ""
        yield Refusal(Cause.CLASS, f"AutoModel of transformers 5 refuses a config without a model type{edit}")


def config_refusals(inspection: Inspection, *, lists: bool = True) -> Iterator[Refusal]:
    """Yield why transformers 5 does not build the class from the config; ``lists``: as 5.23, not as 5.0."""
    if lists and (problem := refused_config(inspection)):
        yield Refusal(Cause.CONFIG, problem)
    family, declared = inspection.family, inspection.config.declared
    if family.model_type in release_tables.names(RELEASE, "refuses true flag") and any(
        entry.value is True for entry in declared
    ):
        yield Refusal(Cause.CONFIG, f"the {shown(family.model_type)} config of transformers 5 refuses {FLAG} true")
    if cannot_build(inspection):
        part = shown(family.part.model_type) if family.part is not None else "its text part"
        whole = f"{shown(family.architecture)} with a {part} text part"
        sentence = f"transformers 5 cannot build {whole} with {FLAG} true: its embedding has another name"
        yield Refusal(Cause.CONFIG, sentence)


# Say when transformers 5 refuses a flag, and when tieconv makes no claim about names.
def flag_refusals(inspection: Inspection, *, null: bool = True) -> Iterator[Refusal]:
    """Yield the refusal of a flag that is neither true nor false, at a level that transformers 5 reads.

    ``null`` says that the release refuses null too.
    """
    family = inspection.family
    levels = [f"{level}.{FLAG}".lstrip(".") for level in ("", *family.levels)]
    for entry in inspection.config.declared:
        if entry.path not in levels or not entry.present or isinstance(entry.value, bool):
            continue
        if entry.value is None and not null:
            continue
        if entry.path == FLAG and family.model_type not in release_tables.names(RELEASE, "takes any flag"):
            sentence = f"transformers 5 refuses the config: {entry.path} is neither true nor false"
            yield Refusal(Cause.FLAG, sentence)
        elif family.tying is Tying.CAN:
            yield unknown(f"{shown(entry.path)} in the config is neither true nor false")


def remark(inspection: Inspection, *, compares: bool) -> str:
    """Return a remark about a head that is a separate parameter; often empty.

    ``compares`` says that the release compares the values. 5.0 to 5.3 only look at which names are stored.
    """
    pair = evidence.head_pair(inspection)
    head = "" if pair is None else pair.head
    tie = next((tie for tie in inspection.ties if any(member.name == head for member in tie.members)), None)
    if tie is None or not tie.declared:
        return "transformers 5 does not scale the logits" if inspection.family.meaning_v5 is FlagMeaning.SCALES else ""
    declares = any(entry.present and entry.value for entry in inspection.config.declared)
    says = "the config says tied" if declares else "the class ties by default"
    says = says if tie.gated else "the class always ties"
    table = next((member.name for member in tie.stored_members if member.state is State.CANONICAL), None)
    # A T5 may store another name in place of the embedding, which the row does not list.
    both = "both" if table is None or pair is None or table == pair.embedding else in_words((head, table))
    if not compares:
        stored = len(tie.stored_members) > 1
        return f"{says}, but {both} are stored, and transformers 5.0 does not compare them" if stored else ""
    if any(member.name == head and member.relation.holds_nan for member in tie.members):
        return f"{says}, but {both} hold a NaN, which differs from itself, so transformers 5 warns"
    differ = "their values differ" if both == "both" else f"{both} differ"
    return f"{says}, but {differ}, so transformers 5 warns"


# Find which stored names transformers 5 reads, and in which order it ties them.
#
# From `PreTrainedModel.tie_weights` and `rename_source_key` of transformers 5.23.0. Measured with every class of the
# table that can be built. Every set of tied names was stored, with each flag and every spelling.

RELEASE = "transformers-5"

_PASSAGE = frozenset(("language_model", "model", "transformer"))
"""Parts of a name that the renamings of transformers 5 add and remove."""


def unread(family: Family, stored: Collection[str]) -> frozenset[str]:
    """Return the stored names of the table's tensors that transformers 5 does not know."""
    located = {locate(family, name, stored) for name in known_names(family, Role.WORD_EMBEDDING)}
    return frozenset(name for name in _not_taken(family) if name in located)


def _not_taken(family: Family) -> Sequence[str]:
    """Return the names that `locate` accepts and transformers 5 does not."""
    names: Sequence[str] = release_tables.by_type(RELEASE, "unread names").get(family.model_type, ())
    return names


def mistakable(family: Family, stored: Collection[str]) -> tuple[str, str] | None:
    """Return a table name that is not stored, and a stored name that transformers 5 may rename to it.

    It applies several renamings in turn, and so reads more spellings than `locate` knows. Such a spelling ends like
    the name and has only parts that the renamings add and remove.
    """
    names = known_names(family, Role.WORD_EMBEDDING)
    located = {name: locate(family, name, stored) for name in names}
    memory = dict(family.renames)
    known = {*located.values(), *_outer(family)}
    parts = _PASSAGE.union(*(name.split(".") for name in (family.prefix, *names, *memory.values())))
    missing = [name for name in names if located[name] is None]
    for name in stored if missing else ():
        tail = name.split(".")[-2:]
        steps_of = name.split(".")
        # It adds and removes each part at most once, so a part three times in a row stays.
        thrice = any(a == b == c for a, b, c in zip(steps_of, steps_of[1:], steps_of[2:], strict=False))
        if name in known or thrice or not parts.issuperset(steps_of):
            continue
        alike = next(
            (lost for lost in missing if tail in (lost.split(".")[-2:], memory.get(lost, lost).split(".")[-2:])), None
        )
        if alike is not None:
            return alike, name
    return None


def twice(family: Family, stored: Collection[str]) -> tuple[str, ...]:
    """Return the stored names, two or more, that the loader reads as one tensor; else an empty tuple."""
    not_taken = _not_taken(family)
    names = known_names(family, Role.WORD_EMBEDDING)
    for name in names:
        spellings = [s for s in dict.fromkeys(variants(family, name)) if s in stored and s not in not_taken]
        if len([spelling for spelling in spellings if spelling == name or spelling not in names]) > 1:
            return tuple(spellings)
    return ()


def _outer(family: Family) -> Iterator[str]:
    """Yield names of a renamed head that transformers 5 does not accept: with the prefix added or removed."""
    head, start = family.output_head, f"{family.prefix}."
    if head is not None and head in dict(family.renames):
        yield from (start + head, head.removeprefix(start))


def in_order(family: Family, names: Sequence[str]) -> list[str]:
    """Return the names without the first, in the order in which the loader ties them to the first.

    Ties that the class declares precede those of its base model.
    """
    start = f"{family.text_start}{family.text_prefix}."
    head_first = family.text_type in release_tables.names(RELEASE, "head first")
    decoder_first = family.text_type in release_tables.names(RELEASE, "decoder first")

    def rank(name: str) -> tuple[bool, bool]:
        late = name != family.output_head if head_first else name.startswith(start)
        return late, decoder_first and "encoder" in name.removeprefix(family.text_start).split(".")

    return sorted(names[1:], key=rank)


def steps(family: Family, names: Sequence[str], stored: Sequence[bool]) -> Iterator[tuple[str, str, bool]]:
    """Yield each tied pair: the source, the target, and whether the tie holds only for equal values."""
    missing = {name for name, is_stored in zip(names, stored, strict=True) if not is_stored}
    source, targets = names[0], in_order(family, names)
    for index, target in enumerate(targets):
        if target in missing:
            backup = next((name for name in targets[index + 1 :] if name not in missing), source)
            give, take = (backup if source in missing else source), target
        else:
            give, take = (target, source) if source in missing else (source, target)
        yield give, take, take not in missing
        missing.discard(take)
