"""Print what breaks the language rules; exit 1 when anything does."""

import argparse
import sys
from collections import Counter

from tests.language.texts import Text, all_texts, broken

RECORDED = ("docs/matrix.md",)
"""Pages that quote messages as they were when a long measurement ran; their next run writes them anew."""


def faults(paths: tuple[str, ...] = ()) -> list[tuple[Text, str]]:
    """Return what is wrong with the texts below ``paths``, relative to the root, or with all but `RECORDED`."""
    chosen = (text for text in all_texts() if (text.file.startswith(paths) if paths else text.file not in RECORDED))
    return [(text, fault) for text in chosen for fault in broken(text)]


def main(arguments: list[str]) -> int:
    """Print each fault with its file and line, or the number of faults by folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.language", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders; default: all but recorded pages")
    parser.add_argument("--count", action="store_true", help="print numbers only")
    options = parser.parse_args(arguments)
    listed = faults(tuple(options.paths))
    if options.count:
        numbers = Counter(("/".join(text.file.split("/")[:2]), text.kind) for text, _ in listed)
        for (folder, kind), number in sorted(numbers.items()):
            print(f"{number:5} {folder} {kind}")
    else:
        for text, fault in listed:
            print(f"{text.file}:{text.line}: {text.kind}: {fault}")
    print(f"{len(listed)} faults")
    return bool(listed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
