"""Map a name in the architecture table to the name in a file, without the prefixes of training programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from tieconv.architectures.class_table import LayerList, exceptions, layer_lists, layer_parameters, outside_layers
from tieconv.architectures.effective_flag import is_large, nested
from tieconv.checkpoint.family import Family, Role, Tying
from tieconv.checkpoint.inspection import Inspection, Missing
from tieconv.checkpoint.model_files import weight_map
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, QuantisedMatrix, parametrised_parts, quantised_twin
from tieconv.checkpoint.value_type import record
from tieconv.text import count


# Map a name in the architecture table to the name in a file.
def locate(family: Family, name: str, names_in_file: Collection[str]) -> str | None:
    """Return the name in the file for the table's ``name``, or ``None`` if the file lacks the tensor.

    Files differ from the table in two ways. They may lack or have the base model's prefix: gpt2 on the Hub has
    ``wte.weight``. Or they use the names in memory, which the loader accepts too.
    """
    return next((variant for variant in variants(family, name) if variant in names_in_file), None)


def spelled(family: Family, name: str, names_in_file: Collection[str]) -> str:
    """Return the name that a missing tensor would have in a file.

    The name has no prefix if no name in the file has the prefix. transformers 4 expects the prefix on all names as
    soon as one name has it.
    """
    start = f"{family.prefix}."
    if not family.prefix or not name.startswith(start) or any(stored.startswith(start) for stored in names_in_file):
        return name
    played = {member for group in family.groups for member in (group.canonical, *group.members)}
    known = {*played, *family.output_biases, family.output_head}
    # Names that never have the prefix say nothing about the other names.
    return name.removeprefix(start) if any(stored not in known for stored in names_in_file) else name


def variants(family: Family, name: str) -> Iterator[str]:
    """Yield every name that the loader accepts for a tensor, the name in the table first."""
    spellings = [name]
    spellings += [memory for stored, memory in family.renames if stored == name]
    spellings += [stored for stored, memory in family.renames if memory == name]
    yield from spellings
    start = family.prefix + "."
    # A renamed head is outside the base model only under its new name.
    has_new_name = name == family.output_head and len(spellings) > 1
    for spelling in spellings[1:] if has_new_name else spellings:
        yield spelling.removeprefix(start) if spelling.startswith(start) else start + spelling
    # transformers 5 removes the prefix once, whatever follows.
    yield from (start + spelling for spelling in spellings if family.prefix and spelling.startswith(start))
    yield from (spelling for known, spelling in exceptions("names").get(family.model_type, {}).items() if known == name)


def renamed(family: Family, in_file: Callable[[str], str]) -> Family:
    """Return ``family`` with ``in_file(name)`` for each name, and without the table's prefix and spellings."""
    groups = tuple(
        replace(group, canonical=in_file(group.canonical), members=tuple(map(in_file, group.members)))
        for group in family.groups
    )
    return replace(
        family,
        input_embedding=family.input_embedding and in_file(family.input_embedding),
        output_head=family.output_head and in_file(family.output_head),
        output_biases=tuple(map(in_file, family.output_biases)),
        groups=groups,
        pieces=tuple(map(in_file, family.pieces)),
        prefix="",
        renames=(),
    )


_MLX_START = "language_model."


def mlx_named(family: Family, names: Collection[str]) -> Family:
    """Return ``family`` with the names that mlx-lm and mlx-vlm give a composite, if ``names`` are those; else itself.

    They put the language model of every composite below ``language_model.``: ``language_model.model.embed_tokens`` is
    the embedding, and ``language_model.lm_head`` the head. Source: mlx-vlm 0.7, ``models/*/language.py``.
    """
    embedding, head = family.input_embedding, family.output_head
    if embedding is None or head is None or locate(family, embedding, names) is not None:
        return family
    end = f".{'.'.join(embedding.split('.')[-2:])}"
    stored = [name for name in names if name.startswith(_MLX_START) and name.endswith(end)]
    if len(stored) != 1:
        return family

    def in_file(name: str) -> str:
        return stored[0] if name.endswith(end) else _MLX_START + ".".join(name.split(".")[-2:])

    return replace(renamed(family, in_file), mlx_names=True)


def known_names(family: Family, *roles: Role) -> list[str]:
    """Return embedding, head, head biases, and the names of the tied groups; ``roles`` restricts the groups."""
    names = [family.input_embedding, family.output_head, *family.output_biases]
    for group in family.groups:
        if not roles or group.role in roles:
            names += [group.canonical, *group.members]
    return list(dict.fromkeys(name for name in names if name is not None))


def unexplained(inspection: Inspection) -> tuple[str, ...]:
    """Return the stored names that may hold the absent head or embedding in a form that tieconv does not know.

    One cause is a format of quantised matrices (SpQR, MXFP4 with other names), another is a table with another name.
    Then no rule calls the tensor missing, and no plan writes one.
    """
    checkpoint, family = inspection.checkpoint, inspection.family
    if checkpoint.graphs or checkpoint.format == "gguf" or checkpoint.adapter is not None:
        return ()
    if family.tying is Tying.HEADLESS or family.pieces or (family.trusted and family.output_head is None):
        return ()
    tensors, tables = checkpoint.tensors, inspection.quantised
    head, embedding = family.output_head or "lm_head.weight", family.input_embedding
    stored_head, stored_embedding = locate(family, head, tensors), embedding and locate(family, embedding, tensors)
    coded = tables.of(HEAD) if tables is not None else None
    if stored_head is None and coded is not None and is_unknown(coded):
        return tuple(part.name for part in coded.parts)
    rows = tables.of(EMBEDDING) if tables is not None else None
    if stored_embedding is None and rows is not None and is_unknown(rows):
        return tuple(part.name for part in rows.parts)
    if stored_head is None and coded is None:
        if inspection.head.input_embedding is None and tables is None:
            return ()  # TIE006 reports a file with neither
        # The names in the module of the head, except for its bias and for the heads of other parts.
        modules = {variant.removesuffix(".weight") for variant in variants(family, head)}
        biases = {spelling for bias in family.output_biases for spelling in variants(family, bias)}
        biases |= {f"{module}.bias" for module in modules}
        start = tuple(f"{module}." for module in modules)
        usual = head.endswith("lm_head.weight")
        candidates = (name for name in tensors if name.startswith(start) or (usual and "lm_head" in name))
        parts = tuple(name for name in candidates if name not in biases and is_outside_layers(name))
        return parts or (_table(inspection, "heads", stored_embedding) if stored_embedding else ())
    if stored_head is not None and inspection.head.input_embedding is None and tables is None:
        return _table(inspection, "inputs", stored_head)
    return ()


def is_unknown(matrix: QuantisedMatrix) -> bool:
    """Return whether a matrix has parts that no known quantiser or parametrisation writes."""
    return not (matrix.scheme or matrix.faults or parametrised_parts(matrix))


_MOST_LAYERS = 10_000
_LEAST_TENSORS, _LEAST_PARAMETERS, _NEARLY_ALL = 4, 8, 0.9
"""A smaller file with fewer tensors in each layer is an example of names, not a model."""


def _is_model(inspection: Inspection, stored_lists: Collection[_StoredList]) -> bool:
    """Return whether a file is a model: it is large, or has nearly all parameters that the class always has."""
    if is_large(inspection):
        return True
    family, names = inspection.family, _names(inspection)
    stored = [locate(family, name, names) is not None for group in outside_layers(family) for name in group]
    for entry in stored_lists:
        layers = [entry.layers.get(str(number), ()) for number in range(entry.total)]
        stored += [leaf in layer for layer in layers for leaf in entry.inside]
    return len(stored) >= _LEAST_PARAMETERS and sum(stored) >= _NEARLY_ALL * len(stored)


def missing_layers(inspection: Inspection) -> tuple[Missing, ...]:
    """Return what is missing in the lists of layers and outside them.

    That is the layers without a tensor. If all are stored, it is a parameter that the class always has in each layer,
    alone or with others. In a class whose layers are alike, it is also what a single layer lacks. Outside the lists it
    is a parameter that the class always has, for example the last norm.
    """
    try:
        return inspection.layers
    except AttributeError:
        object.__setattr__(inspection, "layers", tuple(_missing_layers(inspection)))
        return inspection.layers


def _missing_layers(inspection: Inspection) -> Iterator[Missing]:
    checkpoint, family, stored_lists = inspection.checkpoint, inspection.family, [*_stored_lists(inspection)]
    large = bool(stored_lists or outside_layers(family)) and _is_model(inspection, stored_lists)
    yield from _absent_lists(inspection)
    lacking = [*_outside_layers(inspection, stored_lists, large=large)]
    if lacking:
        yield Missing(_always(family, lacking), lacking)
    quantised = inspection.quantised is not None or any(key.startswith("quant") for key in checkpoint.config_values)
    quantised = quantised and checkpoint.format != "gguf"  # its codes have the usual names
    for entry in stored_lists:
        begin, total, layers = entry.begin, entry.total, entry.layers
        numbers = [str(number) for number in range(total)]
        absent = [begin + number for number in numbers if number not in layers]
        kinds = Counter(frozenset(layers[number]) for number in numbers if number in layers)
        if absent:
            yield Missing(entry.counted, absent)
        within = {number: layers[number] for number in numbers if number in layers}
        config = nested(checkpoint.config_values, entry.level) or {}
        experts = [*_missing_experts(config, entry, within, quantised)]
        yield from experts
        if large and (lacking := [*_without_router(begin, within)]) and checkpoint.format != "gguf":
            yield Missing("", lacking, routers=True)
        if large and (lacking := _without_positions(entry, within.get("0", ()))):
            yield Missing(_always(family, lacking), lacking)
        if quantised:
            continue
        fits = _has_enough_of_the_class(entry.inside, within, large=large)
        yield from _partial_groups(family, entry, within) if fits else ()
        yield from _absent_biases(checkpoint.config_values, entry, within) if fits else ()
        lacking = _inside_layers(begin, within, entry.inside) if fits else []
        if lacking:
            yield Missing(_always(family, lacking), lacking)
        elif not absent and not experts and entry.alike and len(kinds) == 2 and total > 2:
            small, whole = sorted(kinds, key=len)
            more = whole - small if small < whole and kinds[small] == 1 else ()
            # A scale, a buffer, an adapter or a bias that somebody added to a layer is not the class's.
            # llama.cpp loads some files without a matrix of experts.
            own = {leaf for leaf in more if leaf.endswith(".weight") and not (_is_adapted(leaf) or "_exps." in leaf)}
            if own:
                number = next(number for number in numbers if layers[number] == small)
                lacking = [
                    f"{begin}{number}.{leaf}" for leaf in sorted(more) if leaf.replace(".bias", ".weight") in own
                ]
                yield Missing(f"the other {total - 1} layers have {'it' if len(lacking) == 1 else 'them'}", lacking)


def _absent_lists(inspection: Inspection) -> Iterator[Missing]:
    """Yield the lists of layers without a stored layer, if no other name of the file can hold one.

    If another list is stored, a name outside it with the number of the last layer can. Else each name can that is
    neither a table's nor another of the class outside the lists. transformers 4 leaves out the lists that it shares
    with `tie_encoder_decoder`.
    """
    checkpoint, family, names = inspection.checkpoint, inspection.family, inspection.checkpoint.tensors
    begins = {
        start: next((begin for begin in _begins(family, start) if any(name.startswith(begin) for name in names)), None)
        for start, *_ in layer_lists(family)
    }
    stored = tuple(filter(None, begins.values()))
    absent = [entry for entry in layer_lists(family) if begins[entry[0]] is None]
    if checkpoint.config_values.get("tie_encoder_decoder") is True:
        if stored and absent:
            listed = [start.rstrip(".") for start, *_ in absent]
            yield Missing("the config sets tie_encoder_decoder", listed, shared=True)
        return
    unsure = not family.trusted or checkpoint.unread or checkpoint.adapter is not None or checkpoint.mlx
    if unsure or not (names and absent) or family.body_of or not is_large(inspection):
        return
    known = {*known_names(family), *(name for group in outside_layers(family) for name in group)}
    outside = [name.split(".") for name in names if not name.startswith(stored)] if stored else []
    for start, key, *_ in absent if stored or known.issuperset(names) else ():
        level, _, name_of_total = key.rpartition(".")
        total = (nested(checkpoint.config_values, level) or {}).get(name_of_total)
        if type(total) is int and 0 < total <= _MOST_LAYERS and not any(str(total - 1) in steps for steps in outside):
            layers = [f"{start}{number}" for number in range(total)]
            yield Missing(f"the config says {count(total, 'layer')} ({key})", layers)


def _begins(family: Family, start: str) -> tuple[str, ...]:
    """Return how the names of a list may begin: with and without the prefix of the base model."""
    return start, start.removeprefix(f"{family.prefix}.")


def _outside_layers(inspection: Inspection, stored_lists: Collection[_StoredList], *, large: bool) -> Iterator[str]:
    """Yield what the file lacks of the parameters that the class has outside its lists of layers.

    A group counts if one of its names is stored, or a list of layers beside the parameter. A small file may be an
    example of names: most of the group must be stored, or the list.
    """
    checkpoint, family = inspection.checkpoint, inspection.family
    if checkpoint.format not in ("safetensors", "torch") or checkpoint.adapter is not None:
        return
    names = _names(inspection)
    parents = [entry.parent for entry in stored_lists]
    modules = {entry.begin.partition(".")[0] for entry in stored_lists} if large else ()
    judged = {spelling for name in known_names(family) for spelling in variants(family, name)}
    lacks = tuple(exceptions("outside").get(family.architecture, ()))
    groups = [
        [name for name in group if name not in judged and not name.startswith(lacks)]
        for group in outside_layers(family)
    ]
    spellings = {name: locate(family, name, names) for group in groups for name in group}
    lacking = dict[str, str]()
    for group in groups:
        stored = [name for name in group if spellings[name]]
        most = len(stored) > _HALF * len(group) or (stored and large)
        for name in [name for name in group if spellings[name] is None]:
            spelling = spelled(family, name, names)
            # A conversion for MLX may leave out the vision part.
            counts = (most or spelling.partition(".")[0] in modules) and not checkpoint.mlx
            # A class without a head may lack a part, as T5EncoderModel has no decoder.
            counts = counts and (not family.body_of or _parent(name) in map(_parent, stored))
            if counts or any(name.startswith(p) and name.removeprefix(p).count(".") < 2 for p in parents):
                lacking[name] = spelling
    if not lacking:
        return
    outside = [name for name in names if not name.startswith(tuple(entry.begin for entry in stored_lists))]
    known = {stored or spelled(family, name, names) for name, stored in spellings.items()} | judged
    for name, spelling in lacking.items():
        moved = any(_is_moved(name, key) for key in outside if key not in known)
        if not moved and not _has_replacement(spelling, outside, known):
            yield spelling


def _parent(name: str) -> str:
    """Return the module that has the module of a parameter."""
    return name.rpartition(".")[0].rpartition(".")[0]


def _is_moved(name: str, stored: str) -> bool:
    """Return whether two names differ in the modules around the last one, as in memory and in a file."""
    steps, others = name.split("."), stored.split(".")
    return steps[-2:] == others[-2:] and ({*steps} <= {*others} or {*others} <= {*steps})


def _always(family: Family, names: Collection[str]) -> str:
    return f"{family.architecture} always has {'it' if len(names) == 1 else 'them'}"


_DIGITS = 5
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


_POSITIONS = "relative_attention_bias.weight"


def _without_positions(entry: _StoredList, names: Collection[str]) -> list[str]:
    """Return the table of relative positions that the first layer of a T5 or a relative lacks. All layers use it."""
    stored = any(name.endswith(_POSITIONS) and "EncDec" not in name for name in names)
    expected = [] if stored or not names else entry.others or ()
    return [f"{entry.begin}0.{leaf}" for leaf in expected if leaf.endswith(_POSITIONS)]


_ROUTER = re.compile(r"^gate(\.|_weight$)|router")


def _without_router(begin: str, layers: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield the experts that have no router beside them, which all 79 such classes of transformers 5.23 have."""
    for number, names in layers.items():
        # No call for each name: a model has 90,000.
        routers = [name for name in names if ("gate" in name or "router" in name) and name[-4:] != "bias"]
        for parent in sorted({name[: name.index("experts.")] for name in names if "experts." in name}):
            beside = [name[len(parent) :] for name in routers if name.startswith(parent)]
            if parent[-1:] in ("", ".") and not any(_ROUTER.search(name) for name in beside):
                yield f"{begin}{number}.{parent}experts"


def _missing_experts(
    config: Mapping[str, object], entry: _StoredList, layers: Mapping[str, Collection[str]], quantised: bool
) -> Iterator[Missing]:
    """Yield the experts that a layer lacks, and the matrices that one of its experts lacks.

    ``config`` is the level of the config that counts the layers. A layer without experts may be dense: it then has
    another matrix in their place.
    """
    key = next((key for key in _EXPERT_COUNTS if type(config.get(key)) is int), "")
    total = config.get(key)
    assert total is None or isinstance(total, int)
    none, absent, partial = list[str](), list[str](), list[str]()
    by_layer = {number: _experts(names) for number, names in layers.items()}
    beside: dict[str, set[str]] = {}
    for number, experts in by_layer.items():
        for start in experts if entry.alike else ():
            beside.setdefault(start, set()).update(_beside(start, layers[number]))
    for number, experts in by_layer.items():
        begin = f"{entry.begin}{number}."
        for start, names in beside.items():
            if start not in experts and (left := _beside(start, layers[number])) and left <= names:
                none.append(f"{begin}{start.rstrip('.')}")
        for start, stored in experts.items():
            expected = range(min(total or 0, _MOST_LAYERS) or max(stored) + 1)
            absent += [f"{begin}{start}{expert}" for expert in expected if expert not in stored]
            shared = Counter(leaf for parts in stored.values() for leaf in parts)
            leaves = {leaf for leaf, times in shared.items() if times > len(stored) / 2 and leaf.endswith(".weight")}
            for expert, parts in stored.items() if not quantised else ():
                # An expert with other parts is adapted, or has old names.
                if parts < leaves:
                    partial += [f"{begin}{start}{expert}.{leaf}" for leaf in sorted(leaves - parts)]
    if none:  # transformers 5 loads a layer without any
        yield Missing("other layers have them", none)
    if absent:
        counted = f"the config says {count(total, 'expert')} ({key})" if total else "experts with higher numbers are"
        yield Missing(counted, absent, experts=True)
    if partial:
        yield Missing(f"the other experts have {'it' if len(partial) == 1 else 'them'}", partial, experts=True)


def _beside(start: str, names: Collection[str]) -> set[str]:
    """Return the names in the module of the experts that are not theirs, such as the router."""
    module = start.removesuffix("experts.")
    return {name for name in names if name.startswith(module) and not name.startswith(start)}


def _experts(names: Collection[str]) -> dict[str, dict[int, set[str]]]:
    """Return the parts of each numbered expert of a layer, by the module of the experts."""
    experts: dict[str, dict[int, set[str]]] = {}
    for name in names:
        start, word, rest = name.partition("experts.")
        index, _, leaf = rest.partition(".")
        if word and index.isascii() and index.isdecimal() and len(index) < _DIGITS:
            experts.setdefault(start + word, {}).setdefault(int(index), set()).add(leaf)
    return experts


_MOST_OF_A_LAYER, _HALF = 0.75, 0.5
"""Share of the class's parameters of a layer, from which on a list has the names of the class.

Half of them do, if no other name is stored. In a large file any number does then.
"""


def _has_enough_of_the_class(inside: Collection[str], layers: Mapping[str, Collection[str]], *, large: bool) -> bool:
    """Return whether the layers have so many of the parameters ``inside`` that the others may be called missing."""
    stored = sum(leaf in names for names in layers.values() for leaf in inside)
    least = (0 if large else _HALF) if _has_names_of_the_class(layers, inside) else _MOST_OF_A_LAYER
    return stored >= least * len(layers) * len(inside)


def _inside_layers(begin: str, layers: Mapping[str, Collection[str]], inside: Collection[str]) -> list[str]:
    """Return what the layers lack of the parameters that the class has ``inside`` each of them."""
    lacking = []
    for leaf in inside:
        beside = [names for names in layers.values() if leaf in names]
        if len(beside) < len(layers):
            known = {*inside, *(name for names in beside for name in names)}
            without = [number for number, names in layers.items() if leaf not in names]
            lacking += [f"{begin}{n}.{leaf}" for n in without if not _has_replacement(leaf, layers[n], known)]
    return lacking


def _partial_groups(family: Family, entry: _StoredList, layers: Mapping[str, Collection[str]]) -> Iterator[Missing]:
    """Yield what layers lack of the parameters of which the class has all or none in a layer."""
    known = {*entry.inside, *(leaf for group in entry.together for leaf in group)}
    for group in entry.together:
        lacking, beside = list[str](), set[str]()
        for number, names in layers.items():
            absent = [leaf for leaf in group if leaf not in names and not _has_replacement(leaf, names, known)]
            stored = [leaf for leaf in group if leaf in names]
            if stored and absent:
                beside.update(stored)
                lacking += [f"{entry.begin}{number}.{leaf}" for leaf in absent]
        if lacking:
            yield Missing(f"{_always(family, lacking)} beside {min(beside)}", lacking)


def _absent_biases(
    config: Mapping[str, object], entry: _StoredList, layers: Mapping[str, Collection[str]]
) -> Iterator[Missing]:
    """Yield the biases of stored matrices that no layer has, although the config sets a key that gives them."""
    for key, leaves in entry.switched.items():
        level, _, name = key.rpartition(".")
        if (nested(config, level) or {}).get(name) is not True:
            continue
        absent = [
            leaf for leaf in leaves if leaf.endswith(".bias") and not any(leaf in names for names in layers.values())
        ]
        matrices = [(leaf, leaf.removesuffix("bias") + "weight") for leaf in absent]
        lacking = [f"{entry.begin}{n}.{leaf}" for n, names in layers.items() for leaf, own in matrices if own in names]
        if lacking:
            yield Missing(f"the config sets {key}", lacking)


def _has_names_of_the_class(layers: Mapping[str, Collection[str]], inside: Collection[str]) -> bool:
    """Return whether every stored name in the layers is one that the class has in each of them."""
    return {leaf for names in layers.values() for leaf in names} <= {*inside}


def _has_replacement(leaf: str, names: Collection[str], known: Collection[str]) -> bool:
    """Return whether a layer may have the parameter under another name: fused, adapted, or of another variant.

    ``known`` are names that a layer may have beside it.
    """
    module = leaf.rpartition(".")[0]
    known = {*known, f"{module}.weight", f"{module}.bias"}
    if any(name.startswith(f"{module}.") and name not in known for name in names):
        return True
    modules = {name.rpartition(".")[0] for name in known}
    strange = [name.rpartition(".")[0] for name in names if name.rpartition(".")[0] not in modules]
    parent = module.rpartition(".")[0]
    if not parent or any(name.startswith(f"{parent}.") for name in names):
        return any(name.rpartition(".")[0] == parent for name in strange)
    while parent and not any(name.startswith(f"{parent}.") for name in names):
        parent = parent.rpartition(".")[0]
    return any(name.startswith(parent) for name in strange)


_MORE_TOKENS = re.compile("nextn|mtp|eh_proj|hnorm|shared_head")
"""Keys of a config, and modules of a layer, for the prediction of several tokens. Its layers follow the last one."""


def surplus_layers(inspection: Inspection) -> Iterator[tuple[str, list[str], bool]]:
    """Yield what the config says, the stored layers that it does not count, and whether strict loaders fail.

    They fail if the layers are alike. llama.cpp refuses the surplus layers of any GGUF file.
    """
    for entry in _stored_lists(inspection):
        numbers = {int(number) for number in entry.layers if _NUMBER.fullmatch(number)}
        surplus = sorted(numbers - {*range(entry.total)})
        leaves = [leaf for number in surplus for leaf in entry.layers[str(number)]]
        if surplus and not any(map(_MORE_TOKENS.search, [*inspection.checkpoint.config_values, *leaves])):
            alike = entry.alike or inspection.checkpoint.format == "gguf"
            yield entry.counted, [f"{entry.begin}{number}" for number in surplus], alike
        yield from _unasked_parameters(inspection, entry)
        yield from _unknown_parameters(inspection, entry)


def _is_changed(inspection: Inspection) -> bool:
    """Return whether a quantiser or an adapter may have added parameters, or the file has the names of llama.cpp."""
    checkpoint = inspection.checkpoint
    changed = inspection.quantised is not None or any(key.startswith("quant") for key in checkpoint.config_values)
    return changed or checkpoint.adapter is not None or checkpoint.format not in ("safetensors", "torch")


def _unknown_parameters(inspection: Inspection, entry: _StoredList) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the parameters of other classes that this class has in no layer, whatever its config says."""
    remote = "auto_map" in inspection.checkpoint.config_values
    if entry.others is None or _is_changed(inspection) or remote or not is_large(inspection):
        return
    asked = [leaf for leaves in (*entry.together, *entry.switched.values()) for leaf in leaves]
    known = {*entry.inside, *asked, *entry.others}
    starts = tuple(name for name in entry.others if name.endswith("."))
    leaves = {leaf for stored in entry.layers.values() for leaf in stored} - known
    unknown = {leaf for leaf in leaves if leaf.endswith((".weight", ".bias")) and not leaf.startswith(starts)}
    own = sum(leaf in stored for stored in entry.layers.values() for leaf in entry.inside) if unknown else 0
    if own < _HALF * len(entry.layers) * len(entry.inside):
        return  # names of another program
    unknown = unknown and unknown & layer_parameters()
    names = [f"{entry.begin}{n}.{leaf}" for n, stored in entry.layers.items() for leaf in sorted(unknown & {*stored})]
    if names:
        yield f"{inspection.family.architecture} does not have {'it' if len(names) == 1 else 'them'}", names, False


def _unasked_parameters(inspection: Inspection, entry: _StoredList) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the keys that the config does not set, and the parameters that the class has only with them.

    Quantisers and adapters add such parameters too, for example biases of zeros.
    """
    if _is_changed(inspection):
        return
    asked, config = set[str](), inspection.checkpoint.config_values
    for key, leaves in entry.switched.items():
        level, _, name = key.rpartition(".")
        if (nested(config, level) or {}).get(name):
            asked.update(leaves)
    for key, leaves in entry.switched.items():
        unasked = [leaf for leaf in leaves if leaf not in asked]
        names = [f"{entry.begin}{n}.{leaf}" for n, stored in entry.layers.items() for leaf in unasked if leaf in stored]
        if names:
            yield f"the config does not set {key}", names, False


_NUMBER = re.compile("0|[1-9][0-9]{0,3}")


@record
class _StoredList:
    """A stored list of layers: how its names begin, and the names in each layer.

    ``level`` of the config counts the layers, ``total`` is their number, and ``counted`` that in words. ``parent`` is
    the module with the list, in the table. `layer_lists` explains the other fields.
    """

    begin: str
    parent: str
    total: int
    counted: str
    level: str
    layers: Mapping[str, Collection[str]]
    alike: bool
    inside: Collection[str]
    together: Collection[Collection[str]]
    switched: Mapping[str, Collection[str]]
    others: Collection[str] | None


def _names(inspection: Inspection) -> Collection[str]:
    """Return the names of the tensors, also of those in shards that were not read."""
    checkpoint = inspection.checkpoint
    names: Collection[str] = checkpoint.tensors
    return {*names, *weight_map(checkpoint.index)} if checkpoint.unread else names


def _stored_lists(inspection: Inspection) -> Iterator[_StoredList]:
    checkpoint, family, names = inspection.checkpoint, inspection.family, _names(inspection)
    lists, config = layer_lists(family), checkpoint.config_values
    if checkpoint.format == "gguf":
        lists, config = _gguf_layers(inspection)
    for start, key, alike, inside, together, switched, others in lists:
        level, _, name_of_total = key.rpartition(".")
        total = (nested(config, level) or {}).get(name_of_total)
        if type(total) is not int or not 0 < total <= _MOST_LAYERS:
            continue
        for begin in _begins(family, start):
            layers: dict[str, set[str]] = {}
            for name in [name for name in names if name.startswith(begin)]:
                number, _, leaf = name[len(begin) :].partition(".")
                layers.setdefault(number, set()).add(leaf)
            stored = [layers[str(number)] for number in range(total) if str(number) in layers]
            whole = max(map(len, layers.values()), default=0) >= _LEAST_TENSORS
            if stored and (whole or (is_large(inspection) and _has_names_of_the_class(layers, inside))):
                document = "metadata" if checkpoint.format == "gguf" else "config"
                counted = f"the {document} says {count(total, 'layer')} ({key})"
                parent = start[: start.rstrip(".").rfind(".") + 1]
                named = (inside, together, switched, others)
                yield _StoredList(begin, parent, total, counted, level, layers, alike, *named)
                break


def _gguf_layers(inspection: Inspection) -> tuple[list[LayerList], dict[str, object]]:
    """Return the lists of layers of a GGUF file, and their numbers in its metadata as a config has them.

    The layers that predict several tokens are the last ones, and do not count: some architectures load without them.
    """
    architecture, metadata = inspection.family.architecture, inspection.checkpoint.files[0].metadata or {}
    stated = [metadata.get(f"{architecture}.{key}", "0") for key in (*_BLOCKS.values(), "nextn_predict_layers")]
    *totals, unused = [int(text) if _NUMBER.fullmatch(text) else 0 for text in stated]
    known = exceptions("gguf")
    if architecture in known["empty layers"]:
        return [], {}
    alike = architecture in known["alike"]
    lists: list[LayerList] = [
        (start, f"{architecture}.{key}", alike, [], [], {}, None) for start, key in _BLOCKS.items()
    ]
    numbers = {key: total - unused for key, total in zip(_BLOCKS.values(), totals, strict=True)}
    return lists, {architecture: numbers}


_BLOCKS = {"blk.": "block_count", "enc.blk.": "block_count", "dec.blk.": "decoder_block_count"}
"""How the layers of a GGUF file begin, and the key of their number."""


def lacks_embedding(inspection: Inspection) -> bool:
    """Return whether a class without a head lacks its embedding, although its layers are stored under its names."""
    family, checkpoint = inspection.family, inspection.checkpoint
    name, tensors = family.input_embedding, checkpoint.tensors
    if name is None or inspection.head.input_embedding is not None or quantised_twin(name, tensors):
        return False
    has_none = checkpoint.unread or checkpoint.adapter is not None or family.architecture in exceptions("bodies")
    if has_none or not any(_stored_lists(inspection)):
        return False
    from tieconv.architectures.guess import best  # few models lack their embedding

    return best({name: record.shape for name, record in tensors.items()}, "inputs", None, None) is None


def is_outside_layers(name: str) -> bool:
    """Return whether a tensor belongs to no numbered layer and to no module with a separate head."""
    return not any(step.isdigit() or step in ("mtp", "talker", "draft") for step in name.split("."))


def _table(inspection: Inspection, kind: str, partner: str) -> tuple[str, ...]:
    """Return the table with the partner's shape whose name is that of a head (``heads``) or embedding (``inputs``)."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    known = {locate(family, name, tensors) for name in known_names(family)}
    shape = tensors[partner].shape
    alike = {name: shape for name, record in tensors.items() if record.shape == shape and name not in known}
    alike = {name: shape for name in alike if is_outside_layers(name)}
    if not alike or len(shape) != 2:
        return ()
    from tieconv.architectures.guess import best  # most models have no other matrix of this shape

    name = best(alike, kind, None, shape)
    return (name,) if name is not None else ()


# Remove the prefixes of training wrappers from tensor names, such as `module.` of DistributedDataParallel.

INSIDE = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
"""Segments that a wrapper adds to a name at any depth, and the wrapper."""

LEADING = {"module": "DistributedDataParallel", "base_model.model": "PEFT"}
"""Prefixes that a wrapper of the whole model adds to a name, and the wrapper."""

ADAPTED = frozenset({"base_layer", "modules_to_save", "original_module"})
"""Segments that PEFT adds to replaced modules. Without them the adapter would be lost."""

LEFT = re.compile("|".join(("lora_", *ADAPTED, *INSIDE)))
"""What adapters and training wrappers leave in names."""


def unwrapping(names: Collection[str]) -> dict[str, str]:
    """Map each name with a wrapper's prefix to the name without the prefix.

    Empty without such names, if only some names have a leading prefix, or if two names would become one. Also empty for
    adapters that are not merged.
    """
    if any(_is_adapted(name) for name in names):
        return {}
    bare = {name: without_wrappers(name) for name in names}
    for start in _leading(bare.values()):
        bare = {name: rest.removeprefix(start) for name, rest in bare.items()}
    changed = {name: rest for name, rest in bare.items() if name != rest}
    return changed if len(set(bare.values())) == len(bare) and all(bare.values()) else {}


def wrappers_of(changed: Mapping[str, str]) -> list[str]:
    """Return the wrappers whose prefixes `unwrapping` removed, in the order of the names in the file."""
    steps = dict.fromkeys(step for name in changed for step in name.split("."))
    inside = [INSIDE[step] for step in steps if step in INSIDE]
    starts = _leading(without_wrappers(name) for name in changed)
    return [*(LEADING[start.removesuffix(".")] for start in starts), *inside]


def through_wrappers(family: Family, names: Collection[str]) -> Family | None:
    """Return ``family`` with the wrapped names in the file, or ``None`` if no wrapper hides its names."""
    played = [name for name in (family.input_embedding, family.output_head) if name]
    if not played or any(locate(family, name, names) for name in played):
        return None
    changed = unwrapping(names)
    stored = {bare: name for name, bare in changed.items()}
    if not any(locate(family, name, stored) for name in played):
        return None

    def wrapped(name: str) -> str:
        return stored.get(locate(family, name, stored) or "", name)

    return renamed(family, wrapped)


def _is_adapted(name: str) -> bool:
    steps = name.split(".")
    return not ADAPTED.isdisjoint(steps) or any(step.startswith("lora_") for step in steps)


def _leading(names: Iterable[str]) -> list[str]:
    rest, starts = list(names), list[str]()
    while True:
        start = next(
            (f"{wrapper}." for wrapper in LEADING if rest and all(n.startswith(f"{wrapper}.") for n in rest)), None
        )
        if start is None:
            return starts
        starts.append(start)
        rest = [name.removeprefix(start) for name in rest]


# Find the prefix that a training program puts before every tensor name, such as ``app.model.``.
def without_wrappers(name: str) -> str:
    """Return the name without the segments that wrappers of modules add at any depth."""
    return ".".join(step for step in name.split(".") if step not in INSIDE)


def model_prefixes(family: Family, names: Collection[str], starts: Mapping[str, str]) -> tuple[str, ...]:
    """Return every prefix below which ``names`` has the input embedding of the architecture, the shortest first.

    The prefix of a guessed architecture is the one in ``starts`` for its embedding. An empty
    prefix means that the names need none.
    """
    embedding = family.input_embedding
    if embedding is None:
        return ()
    if not family.trusted or embedding in starts:
        return (starts.get(embedding, ""),)
    bare = {without_wrappers(name) for name in names}
    endings = (embedding, *(spelling for spelling in variants(family, embedding) if spelling in bare))
    for ending in endings:
        prefixes = {name[: -len(ending)] for name in bare if name == ending or name.endswith(f".{ending}")}
        if prefixes:
            return tuple(sorted(prefixes, key=lambda prefix: (len(prefix), prefix)))
    return ()


def below(prefix: str, names: Collection[str]) -> dict[str, str]:
    """Map each name of the model, without prefix and wrappers, to the name in the file."""
    stored = {without_wrappers(name): name for name in names}
    return {bare.removeprefix(prefix): name for bare, name in stored.items() if bare.startswith(prefix)}


def in_training(family: Family, names: Collection[str], starts: Mapping[str, str]) -> Family:
    """Return ``family`` with the ``names`` of a training checkpoint, if one prefix fits them; else ``family``."""
    prefixes = model_prefixes(family, names, starts) if family.trusted else ()
    stored = below(prefixes[0], names) if len(prefixes) == 1 else {}
    if all(bare == name for bare, name in stored.items()):
        return family
    prefix = prefixes[0]

    def in_file(name: str) -> str:
        return stored.get(locate(family, name, stored) or "", prefix + name)

    return renamed(family, in_file)
