"""Fill in the repository's address, the version and the install lines, as `tieconv/version.py` sets them."""

from __future__ import annotations

import re
import shlex

from tieconv import version
from tieconv.install import documented_requirement

_EXTRAS = r"\[(?P<extras>[a-z,]+)\]"
_REQUIREMENT = re.compile(rf"(?<!-e )'(?:tieconv|\.){_EXTRAS}(?: @ git\+[^'\s]+)?'")
_FIXTURE = "fixtures/models/llama-duplicated"
_BLOCK = re.compile(r"(<!-- install(?:: (?P<part>first|once))? -->\n```sh\n).*?(```)", re.DOTALL)
"""With ``: first``, the block is one command, the main job; with ``: once`` it installs nothing."""
_USES = re.compile(r"uses: (?:\./\.?tieconv\b|[\w-]+/tieconv@v[\d.]*\d)")
_HOOK = re.compile(r"repo: (?:\.\./tieconv|https://github\.com/[\w-]+/tieconv)(\n +rev: )(?:COMMIT|v[\d.]*\d)")
_CLONE = re.compile(r"(<!-- until a release -->\n).*?(<!-- end -->)", re.DOTALL)
"""Without an address of the repository, CI uses a clone."""
_ADDRESS = re.compile(
    r"(?m)^(?:# )?((?:repository-code: |url: |Documentation = |Source = |Issues = |Changelog = )\S*https://)"
)
"""Lines of CITATION.cff and pyproject.toml, which are comments while the account is unknown."""
_IN_CLONE = """\
tieconv is not released yet. `./.tieconv` below is a clone inside your repository: `git submodule add CLONE .tieconv`.
The clone holds faulty models for tests. `tieconv check .` skips directories whose name starts with a dot.
Check it out with `submodules: true`. In the pre-commit hook, `../tieconv` is a clone beside your repository.
Replace `COMMIT` by the output of `git -C ../tieconv rev-parse HEAD`: pre-commit warns of a `rev` that moves.

"""


def fill(text: str) -> str:
    """Return the page with every address and every install line as the settings have them."""
    name = version.REPOSITORY.removeprefix("https://github.com/")
    clone = name.startswith("OWNER/")
    text = _USES.sub("uses: ./.tieconv" if clone else f"uses: {name}@v{version.VERSION}", text)
    hook = r"../tieconv\1COMMIT" if clone else rf"{version.REPOSITORY}\1v{version.VERSION}"
    text = _HOOK.sub(f"repo: {hook}", text)
    text = _CLONE.sub(rf"\1{_IN_CLONE if clone else ''}\2", text)
    text = re.sub(r"https://github\.com/[\w-]+/tieconv\b", version.REPOSITORY, text)
    text = re.sub(r"https://[\w-]+\.github\.io/tieconv/", site(), text)
    text = _ADDRESS.sub(r"# \1" if clone else r"\1", text)
    text = re.sub(r"(?m)^version: [\d.]+$", f"version: {version.VERSION}", text)  # CITATION.cff
    text = _REQUIREMENT.sub(lambda match: shlex.quote(documented_requirement(*match["extras"].split(","))), text)
    return _BLOCK.sub(lambda match: match[1] + install_lines(match["part"]) + match[3], text)


def site() -> str:
    """Return the address of the documentation on GitHub Pages."""
    owner, name = version.REPOSITORY.removeprefix("https://github.com/").split("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def install_lines(part: str | None = None) -> str:
    """Return the commands that install tieconv. ``first``: those before the first command; ``once``: run it once."""
    requirement = documented_requirement()
    word = shlex.quote(requirement)
    if part == "once":
        source = "" if version.PUBLISHED else f"--from {requirement.removeprefix('tieconv @ ')} "
        return f"uvx {source}tieconv inspect MODEL\n"
    if requirement != ".":
        then = "tieconv inspect YOUR_MODEL\n" if part == "first" else ""
        return f"python3 -m venv .venv && . .venv/bin/activate\npip install {word}\n{then}"
    line = f"python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/tieconv inspect {_FIXTURE}"
    if part == "first":  # in a clone: one line, which shows the main job at once
        return f"{line}\n.venv/bin/tieconv inspect YOUR_MODEL\n"
    # The column of the site is narrow.
    return line.replace(" && ", " \\\n  && ") + "\n. .venv/bin/activate  # then `tieconv` is a command\n"
