"""Pages of HTML without scripts. Their style sheets are in `data/`; light or dark follows the system."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.package_data import data_text

STYLE = data_text(__name__, "page.css")
"""One column on a phone, two on a desktop."""
PRINT = data_text(__name__, "print.css")
"""Light colours, and each heading on the page of its section."""


def page(title: str, style: str, body: Iterable[str], script: str = "") -> str:
    """Return a page whose ``title`` and lines of ``body`` are escaped. The browser may run this ``script`` alone."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    if script:
        from base64 import b64encode
        from hashlib import sha256

        policy += f"; script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
    return "\n".join((
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">',
        f"<title>{title}</title>\n<style>\n{style}{PRINT}</style>\n</head>\n<body>\n<main>",
        *body,
        "</main>",
        *([f"<script>{script}</script>"] if script else []),
        "</body>\n</html>\n",
    ))  # fmt: skip
