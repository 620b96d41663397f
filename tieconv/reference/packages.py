"""Import optional packages, or raise an error with the pip command that installs them."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
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
def silenced() -> Iterator[None]:
    """Hide what libraries log, warn of and print, and keep the handlers and the level of the root logger.

    ONNX Runtime's quantiser configures the root logger when it is imported (1.32).
    """
    root = logging.getLogger()
    disabled, level, handlers = root.manager.disable, root.level, root.handlers[:]
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        root.handlers[:] = handlers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Hide the progress bar and the advice that transformers prints while it loads."""
    messages = transformers.utils.logging
    level, bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(level)
        if bars:
            messages.enable_progress_bar()
