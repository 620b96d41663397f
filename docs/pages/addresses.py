"""Fill in the repository's address, the version and the install lines, as `tieconv/version.py` sets them."""

from __future__ import annotations

import re
import shlex

from tieconv import version
from tieconv.install import documented_requirement

_EXTRAS = r"\[(?P<extras>[a-z,]+)\]"
_REQUIREMENT = re.compile(rf"(?<!-e )'(?:tieconv|\.){_EXTRAS}(?: @ git\+[^'\s]+)?'")
_FIXTURE = "fixtures/models/llama-duplicated"
_BLOCK = re.compile(r"(<!-- install(?P<first>: first)? -->\n```sh\n).*?(```)", re.DOTALL)
"""With ``: first``, the block is the one command that shows the main job at once."""
_USES = re.compile(r"uses: (?:\./tieconv\b|[\w-]+/tieconv@v[\d.]*\d)")
_HOOK = re.compile(r"repo: (?:\.\./tieconv|https://github\.com/[\w-]+/tieconv)(\n +rev: )(?:HEAD|v[\d.]*\d)")
_CLONE = re.compile(r"(<!-- until a release -->\n).*?(<!-- end -->)", re.DOTALL)
"""Without an address of the repository, CI uses a clone."""
_ADDRESS = re.compile(
    r"(?m)^(?:# )?((?:repository-code: |url: |Documentation = |Source = |Issues = |Changelog = )\S*https://)"
)
"""Lines of CITATION.cff and pyproject.toml, which are comments while the account is unknown."""
_IN_CLONE = """\
tieconv is not released yet. `./tieconv` below is a clone inside your repository: `git submodule add CLONE tieconv`.
Check it out with `submodules: true`. In the pre-commit hook, `../tieconv` is a clone beside your repository.

"""


def fill(text: str) -> str:
    """Return the page with every address and every install line as the settings have them."""
    name = version.REPOSITORY.removeprefix("https://github.com/")
    clone = name.startswith("OWNER/")
    text = _USES.sub("uses: ./tieconv" if clone else f"uses: {name}@v{version.VERSION}", text)
    hook = r"../tieconv\1HEAD" if clone else rf"{version.REPOSITORY}\1v{version.VERSION}"
    text = _HOOK.sub(f"repo: {hook}", text)
    text = _CLONE.sub(rf"\1{_IN_CLONE if clone else ''}\2", text)
    text = re.sub(r"https://github\.com/[\w-]+/tieconv\b", version.REPOSITORY, text)
    text = re.sub(r"https://[\w-]+\.github\.io/tieconv/", site(), text)
    text = _ADDRESS.sub(r"# \1" if clone else r"\1", text)
    text = re.sub(r"(?m)^version: [\d.]+$", f"version: {version.VERSION}", text)  # CITATION.cff
    text = _REQUIREMENT.sub(lambda match: shlex.quote(documented_requirement(*match["extras"].split(","))), text)
    return _BLOCK.sub(lambda match: match[1] + install_lines(first=bool(match["first"])) + match[3], text)


def site() -> str:
    """Return the address of the documentation on GitHub Pages."""
    owner, name = version.REPOSITORY.removeprefix("https://github.com/").split("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def install_lines(first: bool = False) -> str:
    """Return the commands that install tieconv, or run it once; with ``first`` those before the first command."""
    requirement = documented_requirement()
    word = shlex.quote(requirement)
    if version.PUBLISHED:
        once = ("uvx tieconv", "pipx run tieconv")
    else:
        source = requirement.removeprefix("tieconv @ ")
        once = (f"uvx --from {source} tieconv", f"pipx run --spec {source} tieconv")
    lines = [
        "python3 -m venv .venv && . .venv/bin/activate",
        f"pip install {word}",
    ]
    lines += [f"{call} inspect MODEL  # once, without installing" for call in once]
    if requirement == ".":  # in a clone: one line, which shows the main job at once
        lines[:2] = [
            f"python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/tieconv inspect {_FIXTURE}",
            ". .venv/bin/activate  # `tieconv` by its name",
        ]
    if first:
        lines = lines[: 1 if requirement == "." else 2]
    else:
        lines[0] = lines[0].replace(" && ", " \\\n  && ")  # the column of the site is narrow
    return "".join(f"{line}\n" for line in lines)
