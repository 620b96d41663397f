"""Parse the Python files beside the weights for ``_tied_weights_keys``. They are never imported or run.

transformers 5 reads ``_tied_weights_keys`` as a dict of target and source names. Custom model code that was
written for transformers 4 declares a list.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Listing
from tieconv.text import shown

DECLARATION = "_tied_weights_keys"
SIZE_LIMIT = 1_000_000
FILE_LIMIT = 20


def scan(listing: Listing, files: Files) -> tuple[Caution, ...]:
    """Return one `Caution` for each ``modeling_*.py`` whose declaration transformers 5 cannot use.

    Skips files that are too large or that do not parse.
    """
    names = [name for name in listing.top if name.startswith("modeling_") and name.endswith(".py")]
    return tuple(caution for name in names[:FILE_LIMIT] for caution in _scan_one(name, listing, files))


def _scan_one(name: str, listing: Listing, files: Files) -> Iterator[Caution]:
    if listing.entries[name] > SIZE_LIMIT:
        return
    source = files.pread(name, SIZE_LIMIT, 0)
    if DECLARATION.encode() not in source:
        return
    for value in _declared(source):
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            listed = _strings(value.elts)
            yield Caution("code.tied-keys-list", f"{shown(name)} declares {DECLARATION} as a list", listed)
        elif isinstance(value, ast.Dict):
            same = tuple(key for key, to in zip(_keys(value), _strings(value.values), strict=False) if key == to)
            if same:
                yield Caution("code.tied-to-itself", f"{shown(name)} ties names to themselves", same)


def _declared(source: bytes) -> list[ast.expr]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about the escapes of the file
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [value for node in tree.body if isinstance(node, ast.ClassDef) for value in _in_class(node)]


def _in_class(node: ast.ClassDef) -> Iterator[ast.expr]:
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and any(isinstance(target, ast.Name) and target.id == DECLARATION for target in targets):
            yield value


def _strings(values: list[ast.expr]) -> tuple[str, ...]:
    return tuple(entry.value for entry in values if isinstance(entry, ast.Constant) and isinstance(entry.value, str))


def _keys(value: ast.Dict) -> tuple[str, ...]:
    return _strings([key for key in value.keys if key is not None])
