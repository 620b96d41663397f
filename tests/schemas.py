"""Validation against the schemas of tieconv, each checked once: checking one takes a hundred times as long."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _validator(name: str) -> Any:
    import jsonschema

    schema = json.loads((files("tieconv.reporters") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def validate(document: object, name: str) -> None:
    """Raise `jsonschema.ValidationError` where ``document`` does not follow the schema ``name``, such as ``plan``."""
    _validator(name).validate(document)
