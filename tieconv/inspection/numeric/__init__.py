"""Exact arithmetic on stored floats. Imports numpy: import it lazily."""
