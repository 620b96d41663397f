"""What loaders make of the model before a plan and after it."""

from tieconv.plans.meaning.judge import judged
from tieconv.plans.meaning.note import Note, Notes

__all__ = ["Note", "Notes", "judged"]
