"""Every way that tieconv stops: one sentence for the user, one hint with the next command."""

from __future__ import annotations

import sys


class TieconvError(Exception):
    """A failure that a user can read.

    ``message`` is one sentence that names the file and the tensor it is about, ``code`` a stable identifier that tests
    and scripts may match. ``hint`` is the next thing to do in Python's terms, which a traceback shows too;
    ``command_hint`` is the same for the command line. With ``source`` the message starts with that model, and
    ``reason`` is what follows.
    """

    exit_code = 2

    def __init__(self, reason: str, hint: str = "", code: str = "", *, source: str = "") -> None:
        message = f"{source}: {reason}" if source else reason
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.command_hint = hint
        self.code = code or type(self).__name__
        if hint:
            self.add_note(f"hint: {self.hint}")

    @property
    def hint(self) -> str:
        """The next thing to do, with calls of `tieconv` in place of commands."""
        from tieconv.python_terms import in_python

        return in_python(self.command_hint)


class UnreadableError(TieconvError):
    """The input is missing, malformed, or not what its name says."""


class UnsafePathError(UnreadableError):
    """A path in or under the model leaves the model directory, or is no regular file."""


class RefusedError(TieconvError):
    """The request is understood and would lose something, or cannot be proved right."""


class StalePlanError(TieconvError):
    """The source changed after the plan was made."""


class DestinationError(TieconvError):
    """OUT exists, lies inside the source, or is being written by another process."""


class WriteFailedError(TieconvError):
    """The operating system stopped a write: no space, no permission, an I/O error."""


class VerificationError(TieconvError):
    """What was written and read back is not what was promised."""


class SettingsError(TieconvError):
    """A rule, a settings file or a baseline is not what it has to be."""


class MissingPackageError(TieconvError):
    """A package that the command needs is not installed, or two exclude each other."""


class UnsupportedSystemError(TieconvError):
    """The operating system lacks what safe reading and writing need."""


class NotRunError(TieconvError):
    """A measurement could not be made here: the provider is missing, or the precision has no kernels.

    ``active`` is the provider that would have run, ``fallback`` the heavy nodes that it left on the CPU.
    """

    def __init__(
        self, message: str, hint: str = "", code: str = "", *, active: str = "", fallback: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint, code)
        self.active = active
        self.fallback = fallback


def require_posix() -> None:
    """Raise `UnsupportedSystemError` on Windows, which has no directory descriptors and no `O_NOFOLLOW`."""
    if sys.platform == "win32":
        raise UnsupportedSystemError(
            "tieconv does not run on Windows: it needs the file operations of Linux or macOS",
            "run it in WSL, the Windows Subsystem for Linux",
            "system.windows",
        )
