"""Checks of tied weights inside other programs: trainers, training loops and tests."""
