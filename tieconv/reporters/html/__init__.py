"""Pages of HTML without scripts. Their style sheets are in `data/`; light or dark follows the system."""

from __future__ import annotations

from tieconv.package_data import data_text

STYLE = data_text(__name__, "page.css")
"""One column on a phone, two on a desktop."""
PRINT = data_text(__name__, "print.css")
"""Light colours, and each heading on the page of its section."""
