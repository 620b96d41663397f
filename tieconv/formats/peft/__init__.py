"""Adapters of PEFT."""
