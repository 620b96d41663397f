"""Compare what loaders make of a model before and after a plan."""

from tieconv.plans.meaning.note import Note, Notes
from tieconv.plans.meaning.refusal_or_note import judged

__all__ = ["Note", "Notes", "judged"]
