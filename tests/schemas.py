"""Validation against a schema that many tests use: checking the schema itself takes a hundred times as long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema

_VALIDATORS: dict[int, tuple[object, Any]] = {}


def validate(document: object, schema: Mapping[str, Any]) -> None:
    """Raise `jsonschema.ValidationError` where ``document`` does not follow ``schema``, which is checked once."""
    if id(schema) not in _VALIDATORS:
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
        _VALIDATORS[id(schema)] = schema, validator(schema)  # with the schema kept, no other object gets its id
    _VALIDATORS[id(schema)][1].validate(document)
