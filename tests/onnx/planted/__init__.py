"""Faults that an export can have, by what they change, and the list of all with the models that they are planted in."""
