"""Import optional packages, or raise an error with the pip command that installs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tieconv.errors import MissingPackageError
from tieconv.install import install_command
from tieconv.text import Hint, call, shown

BY_TRANSFORMERS = Hint("with transformers.exporters, then run ", call("dedup"), " on the result")


def need(module: str, extra: str, purpose: str) -> Any:
    """Return the module. Raises `MissingPackageError` with the pip command if it is missing or its import fails."""
    hint = install_command(extra)
    policy = {} if "OMP_WAIT_POLICY" in os.environ else {"OMP_WAIT_POLICY": "PASSIVE"}
    os.environ.update(policy)  # idle threads of torch sleep, as a session's do; OpenMP reads it when it is loaded
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or module).partition(".")[0] != module.partition(".")[0]:
            raise _broken(module, purpose, error, hint) from error
        raise MissingPackageError(f"{purpose} needs the package {module}, which is not installed", hint) from error
    except (ImportError, OSError) as error:
        raise _broken(module, purpose, error, hint) from error
    finally:
        for name in policy:
            os.environ.pop(name, None)


def require(purpose: str, extra: str, *modules: str) -> None:
    """Import each of the modules. Raises `MissingPackageError` with the pip command if one is missing."""
    for module in modules:
        need(module, extra, purpose)


def _broken(module: str, purpose: str, error: Exception, hint: str) -> MissingPackageError:
    return MissingPackageError(f"{purpose} needs the package {module}, but its import fails: {shown(error)}", hint)


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Hide the progress bar and the advice that transformers prints while it loads."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
