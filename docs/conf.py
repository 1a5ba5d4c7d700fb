"""How Sphinx builds the documentation. Pages are MyST Markdown; see index.md for the four kinds."""

from __future__ import annotations

import logging
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Headgate"
author = copyright = "The Headgate authors"  # noqa: A001 - the name Sphinx reads
version = release = installed_version("headgate")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings write names in single backquotes, as Markdown does.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = f"Headgate {release}"

exclude_patterns = ["decisions/0000-template.md"]


def setup(app: Sphinx) -> None:  # noqa: ARG001 - Sphinx calls it so
    """Let a section be empty until its first page is written.

    Sphinx gives this one warning no type, so `suppress_warnings` cannot name it.
    """
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(
        lambda record: getattr(record, "subtype", None) != "empty_glob"
    )
