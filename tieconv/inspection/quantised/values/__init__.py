"""Dequantise rows of a matrix. These modules import numpy: import them lazily."""
