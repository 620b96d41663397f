"""Print what breaks the language rules; exit 1 when anything does."""

import argparse
import sys
from collections import Counter

from tests.language.rules import broken
from tests.language.texts import Text, all_texts

FINISHED: tuple[str, ...] = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/alignment.md",
    "docs/analyze.md",
    "docs/architectures.md",
    "docs/cases.md",
    "docs/check.md",
    "docs/cli.md",
    "docs/comparison.md",
    "docs/consumers.md",
    "docs/design.md",
    "docs/export.md",
    "docs/formats.md",
    "docs/glossary.md",
    "docs/gpu.md",
    "docs/guides/",
    "docs/hub.md",
    "docs/index.md",
    "docs/onnx.md",
    "docs/pages/export_text.md",
    "docs/pages/gpu_text.md",
    "docs/pages/parity_text.md",
    "docs/parity.md",
    "docs/performance.md",
    "docs/python.md",
    "docs/quickstart.md",
    "docs/rules.md",
    "docs/safety.md",
    "docs/schemas.md",
    "docs/states.md",
    "docs/versions.md",
    "tests/checks/branches/expected.json",
    "tieconv/checks",
    "tieconv/analysis/",
    "tieconv/__init__.py",
    "tieconv/__main__.py",
    "tieconv/api/",
    "tieconv/architectures/",
    "tieconv/checkpoint/",
    "tieconv/cli",
    "tieconv/comparison/",
    "tieconv/demo/",
    "tieconv/errors.py",
    "tieconv/execute/",
    "tieconv/formats/",
    "tieconv/gate/",
    "tieconv/inspection/",
    "tieconv/install.py",
    "tieconv/loaders/",
    "tieconv/onnx/__init__.py",
    "tieconv/onnx/export/",
    "tieconv/onnx/graph/",
    "tieconv/onnx/parity/",
    "tieconv/onnx/session/",
    "tieconv/onnx/share/",
    "tieconv/onnx/write/",
    "tieconv/opened.py",
    "tieconv/package_data.py",
    "tieconv/planned.py",
    "tieconv/plans/__init__.py",
    "tieconv/plans/base_prefix.py",
    "tieconv/plans/biases.py",
    "tieconv/plans/build.py",
    "tieconv/plans/config.py",
    "tieconv/plans/edited_files.py",
    "tieconv/plans/edited_index.py",
    "tieconv/plans/edited_metadata.py",
    "tieconv/plans/edits.py",
    "tieconv/plans/flag_effect.py",
    "tieconv/plans/guards.py",
    "tieconv/plans/meaning/",
    "tieconv/plans/named_format.py",
    "tieconv/plans/other_formats.py",
    "tieconv/python_terms.py",
    "tieconv/reference/",
    "tieconv/reporters/",
    "tieconv/sources/",
    "tieconv/text.py",
    "tieconv/version.py",
)
"""The paths whose texts keep the rules; the others are not judged without being named."""


def faults(paths: tuple[str, ...]) -> list[tuple[Text, str]]:
    """Return what is wrong with the texts below ``paths``, relative to the root."""
    return [(text, fault) for text in all_texts() if text.file.startswith(paths) for fault in broken(text)]


def main(arguments: list[str]) -> int:
    """Print each fault with its file and line, or the number of faults by folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.language", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders; default: the finished ones")
    parser.add_argument("--count", action="store_true", help="print numbers only")
    options = parser.parse_args(arguments)
    found = faults(tuple(options.paths) or FINISHED)
    if options.count:
        numbers = Counter(("/".join(text.file.split("/")[:2]), text.kind) for text, _ in found)
        for (folder, kind), number in sorted(numbers.items()):
            print(f"{number:5} {folder} {kind}")
    else:
        for text, fault in found:
            print(f"{text.file}:{text.line}: {text.kind}: {fault}")
    print(f"{len(found)} faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
