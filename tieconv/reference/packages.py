"""Optional packages: one sentence and the pip command where one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tieconv.errors import MissingPackageError
from tieconv.install import install_command
from tieconv.text import shown


def need(module: str, extra: str, purpose: str) -> Any:
    """The module; `MissingPackageError` with the pip command where it is not installed or cannot be imported."""
    hint = install_command(extra)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or module).partition(".")[0] != module.partition(".")[0]:
            raise _broken(module, purpose, error, hint) from error
        raise MissingPackageError(f"{purpose} needs the package {module}, which is not installed", hint) from error
    except (ImportError, OSError) as error:
        raise _broken(module, purpose, error, hint) from error


def require(purpose: str, extra: str, *modules: str) -> None:
    """As `need`, for each of the modules."""
    for module in modules:
        need(module, extra, purpose)


def _broken(module: str, purpose: str, error: Exception, hint: str) -> MissingPackageError:
    return MissingPackageError(f"{purpose} needs the package {module}, whose import fails: {shown(error)}", hint)
