"""Which tests concern which module; of these, a mutant is run against the ones that reach its lines."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tieconv"

BASE = "base"
"""The modules of no room."""

EXECUTE = tuple(
    f"tests/execute/test_{name}.py"
    for name in ("verify", "write", "torch_write", "arithmetic", "layout", "refusals", "attributes", "dropped",
                 "leftover", "staging", "resume", "shared_directory")
)  # fmt: skip
"""The tests of writing but for those that kill hundreds of processes."""


def under(paths: str) -> tuple[str, ...]:
    """Paths of tests, between blanks."""
    return tuple(f"tests/{path}" for path in paths.split())


TESTS: dict[str, tuple[str, ...]] = {
    "onnx/parity": under("onnx"),
    "onnx/share": under("onnx/share onnx"),
    "analysis": under("analysis cli"),
    "api": under("gate cli test_api.py analysis hub objects onnx"),
    "checkpoint": (
        *under("checkpoint checks cli gate onnx output plans python/test_face.py reporters inspection sources"),
        *EXECUTE,
    ),
    "checks": under("checks consumers formats onnx"),
    "cli": under("cli output gate hub objects onnx"),
    "comparison": under("cli reporters hub composites plans"),
    "live": under("live"),
    "integrations": under("live"),
    "loaders": under("consumers families checks formats"),
    "demo": under("demo"),
    "execute": (*EXECUTE, *under("objects/test_remote_writes.py plans")),
    "architectures": under("families composites public checks consumers plans"),
    "formats": under("formats sources cli execute/test_torch_write.py onnx hub"),
    "gate": under("gate cli hub objects"),
    "inspection": under("inspection checks cli/test_inspect.py hub analysis formats onnx"),
    "onnx": under("onnx"),
    "plans": under("plans checks cli cases formats"),
    "reference": under("onnx analysis"),
    "reporters": under("reporters output cli onnx inspection/quantised"),
    "sources": under("sources hub objects formats"),
    BASE: under("cli test_api.py output hub objects consumers project/test_install.py python/test_hints.py"),
}


def unit_of(path: str) -> str:
    """What is recorded together with a path of `TESTS`: ``cli`` for ``tests/cli/test_inspect.py``."""
    return path.split("/")[1]


def units() -> dict[str, list[str]]:
    """The widest paths of `TESTS` by unit."""
    every = {path for paths in TESTS.values() for path in paths}
    by_unit: dict[str, list[str]] = {}
    for path in sorted(every):
        if not any(path.startswith(f"{room}/") for room in every):
            by_unit.setdefault(unit_of(path), []).append(path)
    return by_unit


def room_of(file: str) -> str:
    """The room of a module, a key of `TESTS`: ``checks`` for ``tieconv/checks/ties.py``."""
    folder = Path(file).parent.relative_to("tieconv").as_posix()
    parts = [] if folder == "." else folder.split("/")
    rooms = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((room for room in rooms if room in TESTS), BASE)


def modules() -> list[str]:
    """Every module of the package, relative to the root of the repository."""
    return sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))
