"""What loaders make of the model before a plan and after it."""

from tieconv.plans.meaning.note import Note, Notes
from tieconv.plans.meaning.refusal_or_note import judged

__all__ = ["Note", "Notes", "judged"]
