"""Facts about a model in memory besides its tensors: shared parameters, and what a save writes."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record

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
        return {
            "class": self.class_name,
            "one_object": [list(names) for names in self.one_object],
            "one_storage": [list(names) for names in self.one_storage],
            "unread": dict(self.unread),
            "save_pretrained": saved if self.saves else None,
        }
