"""The errors of tieconv: each has one sentence for the user, and a hint with the next command."""

from __future__ import annotations

from tieconv.text import shown

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Python raises if a value of a document has another type, size or range than its reader expects."""


class TieconvError(Exception):
    """An error with a message for the user.

    ``message`` is one sentence with the file and the tensor. ``code`` is a stable identifier for tests and scripts.
    ``hint`` is the next step as a Python call, and a traceback shows it too. ``command_hint`` is the same step for the
    command line. With ``source``, the message starts with that model, and ``reason`` is the rest.
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
        """The next step, with calls of `tieconv` instead of commands."""
        return getattr(self.command_hint, "python", self.command_hint)


class UnreadableError(TieconvError):
    """The input is missing or malformed, or its content does not match its name."""


class UnsafePathError(UnreadableError):
    """A path in the model points outside the model directory, or is not a regular file."""


class RefusedError(TieconvError):
    """The command would lose something, or tieconv cannot prove the result correct."""


class StalePlanError(TieconvError):
    """The source changed after the plan was made."""


class DestinationError(TieconvError):
    """OUT exists, lies inside the source, or another process writes it."""


class WriteFailedError(TieconvError):
    """The operating system refused a write: no space, no permission, or an I/O error."""


class VerificationError(TieconvError):
    """The written files, read back, differ from the plan."""


class SettingsError(TieconvError):
    """A rule, a settings file or a baseline is unknown or invalid."""


class MissingPackageError(TieconvError):
    """A package that the command needs is not installed, or two packages conflict."""


class UnsupportedSystemError(TieconvError):
    """The operating system lacks functions that safe reading and writing need."""


class NotRunError(TieconvError):
    """A measurement cannot run on this machine: the provider is missing, or has no kernels for the precision.

    ``active`` is the provider that would run. ``fallback`` lists the heavy nodes that it leaves on the CPU.
    """

    def __init__(
        self, message: str, hint: str = "", code: str = "", *, active: str = "", fallback: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint, code)
        self.active = active
        self.fallback = fallback


def explained(error: Exception, model: str = "") -> tuple[str, str]:
    """Return the sentence and the hint of any error. One that is not tieconv's own is said of ``model``, if given."""
    if isinstance(error, TieconvError):
        return error.message, error.command_hint
    about, again = (f"{shown(model)}: ", "tieconv inspect") if model else ("", "again")
    if isinstance(error, OSError):
        where = shown(error.filename or model or "a file or standard output")
        return f"{where}: {(error.strerror or str(error)).lower()}", "check the path, its permissions and the disk"
    if isinstance(error, MemoryError):
        return f"{about}out of memory", "close other programs; if it happens again, report it as a bug"
    if isinstance(error, RecursionError):
        chained = "it chains or nests more parts than Python follows"
        return f"{about or 'the model cannot be followed: '}{chained}", "store it again with fewer"
    if isinstance(error, ModuleNotFoundError) and error.name == "numpy":
        return f"{about}this needs numpy, which is not installed", "install it: pip install numpy"
    hint = f"this is a bug in tieconv; run {again} with --traceback and report the output"
    return f"{about}unexpected {type(error).__name__}: {shown(error)}", hint
