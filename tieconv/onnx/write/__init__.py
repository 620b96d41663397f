"""Graphs planned, written beside OUT, proved and renamed."""
