"""Tests of the proofs that an inspection rests on."""
