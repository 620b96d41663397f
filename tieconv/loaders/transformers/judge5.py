"""What transformers 5 makes of a model, in one word and one sentence: it keeps a head that differs, and warns."""

from __future__ import annotations

from tieconv.checkpoint.family import FlagMeaning, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders import weight_files as files
from tieconv.loaders.as_read import as_read, without
from tieconv.loaders.interface import Verdict, error, unknown
from tieconv.loaders.loaded import Cause
from tieconv.loaders.questions import Pair, listed
from tieconv.loaders.transformers.load5 import Guesses, load
from tieconv.loaders.transformers.names5 import RELEASE, stranger, twice
from tieconv.loaders.transformers.pair_verdict import refused, weights, words
from tieconv.text import shown


def judge(inspection: Inspection) -> Verdict:
    """What transformers 5 makes of the head, the embedding and the names tied to them."""
    loaded = load(inspection)
    found = files.by_name(inspection) or refused(loaded, Cause.CONFIG) or _odd_flag(inspection) or _doubtful(inspection)
    if found is not None:
        return found
    reading = as_read(inspection, loaded.unread)
    found = refused(loaded, Cause.SHAPES) or _decide(inspection, reading, {})
    return without(inspection, loaded.loader, found, loaded.unread)


def _doubtful(inspection: Inspection) -> Verdict | None:
    """The verdict where it is not clear which tensor a name is."""
    family, stored = inspection.family, inspection.checkpoint.tensors
    same = twice(family, stored)
    if same:
        return unknown(f"{listed(same)} are names of one tensor, of which one is taken")
    odd = stranger(family, stored)
    if odd is None:
        return None
    missing, name = map(shown, odd)
    return unknown(f"{missing} is not stored, and {name} may be taken for it: renamings follow each other there")


def _odd_flag(inspection: Inspection) -> Verdict | None:
    """The verdict for a flag that is neither true nor false, at a level that is read."""
    family = inspection.family
    levels = [f"{level}.{facts.FLAG}".lstrip(".") for level in ("", *family.levels)]
    for entry in inspection.config.declared:
        if entry.path not in levels or not entry.present or isinstance(entry.value, bool):
            continue
        if entry.path == facts.FLAG and family.model_type not in release_tables.names(RELEASE, "takes any flag"):
            return error(f"{entry.path} in the config is neither true nor false, which transformers 5 refuses")
        if family.tying is Tying.CAN:
            return unknown(f"{shown(entry.path)} in the config is neither true nor false")
    return None


def _decide(inspection: Inspection, reading: Inspection, guesses: Guesses) -> Verdict:
    """The verdict, where it is the same whether or not the pairs that were not compared are equal."""
    loaded, pair = load(inspection, guesses), facts.pair(reading)
    if pair is None:
        return unknown("the table does not name both the embedding and the head")
    if loaded.undecided is None:
        names = list(dict.fromkeys((pair.head, pair.embedding, *words(reading))))
        return weights(reading, loaded, pair, names, _apart(reading, pair))
    two = loaded.undecided
    apart, equal = (_decide(inspection, reading, {**guesses, two: same}) for same in (False, True))
    if (apart.outcome, apart.dropped) == (equal.outcome, equal.dropped):
        return apart
    return unknown(f"{shown(two[1])} was not compared with the tensor that it is tied to")


def _apart(inspection: Inspection, pair: Pair) -> str:
    """What else an untied head means."""
    tie = next((tie for tie in inspection.ties if any(member.name == pair.head for member in tie.members)), None)
    if tie is not None and tie.declared:
        return ": they count as tied, but their values differ, which is warned of"
    return ", and the logits are not scaled" if inspection.family.meaning_v5 is FlagMeaning.SCALES else ""
