"""The facts about a checkpoint as frozen data: no tensor bytes, no input or output."""
