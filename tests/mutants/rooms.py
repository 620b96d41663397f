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

TESTS: dict[str, tuple[str, ...]] = {
    "onnx/parity": ("tests/onnx",),
    "onnx/share": ("tests/onnx/share", "tests/onnx"),
    "analysis": ("tests/analysis", "tests/cli"),
    "api": (
        "tests/gate",
        "tests/cli",
        "tests/test_api.py",
        "tests/analysis",
        "tests/hub",
        "tests/objects",
        "tests/onnx",
    ),
    "checkpoint": (
        "tests/checkpoint",
        "tests/checks",
        "tests/cli",
        "tests/gate",
        "tests/onnx",
        "tests/output",
        "tests/plans",
        "tests/python/test_face.py",
        "tests/reporters",
        "tests/inspection",
        "tests/sources",
        *EXECUTE,
    ),
    "checks": ("tests/checks", "tests/consumers", "tests/formats", "tests/onnx"),
    "cli": ("tests/cli", "tests/output", "tests/gate", "tests/hub", "tests/objects", "tests/onnx"),
    "comparison": ("tests/cli", "tests/reporters", "tests/hub", "tests/composites", "tests/plans"),
    "live": ("tests/live",),
    "integrations": ("tests/live",),
    "loaders": ("tests/consumers", "tests/families", "tests/checks", "tests/formats"),
    "demo": ("tests/demo",),
    "execute": (*EXECUTE, "tests/objects/test_remote_writes.py", "tests/plans"),
    "architectures": (
        "tests/families",
        "tests/composites",
        "tests/public",
        "tests/checks",
        "tests/consumers",
        "tests/plans",
    ),
    "formats": (
        "tests/formats",
        "tests/sources",
        "tests/cli",
        "tests/execute/test_torch_write.py",
        "tests/onnx",
        "tests/hub",
    ),
    "gate": ("tests/gate", "tests/cli", "tests/hub", "tests/objects"),
    "inspection": (
        "tests/inspection",
        "tests/checks",
        "tests/cli/test_inspect.py",
        "tests/hub",
        "tests/analysis",
        "tests/formats",
        "tests/onnx",
    ),
    "onnx": ("tests/onnx",),
    "plans": ("tests/plans", "tests/checks", "tests/cli", "tests/cases", "tests/formats"),
    "reference": ("tests/onnx", "tests/analysis"),
    "reporters": ("tests/reporters", "tests/output", "tests/cli", "tests/onnx", "tests/inspection/quantised"),
    "sources": ("tests/sources", "tests/hub", "tests/objects", "tests/formats"),
    BASE: (
        "tests/cli",
        "tests/test_api.py",
        "tests/output",
        "tests/hub",
        "tests/objects",
        "tests/consumers",
        "tests/project/test_install.py",
        "tests/python/test_hints.py",
    ),
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
