"""Run every example as a test: Python blocks in the README and the documentation, and docstrings.

The blocks of one document share one namespace, so a page reads from top to bottom like a script; so
do the docstrings of one module. A decision record quotes code as it was, and is not run. A block
that cannot run here is preceded by `<!-- skip: next -->`.
"""

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser
from sybil.sybil import SybilCollection

# A pattern is matched from the right, so it holds at any depth below `path`.
in_markdown = [PythonCodeBlockParser(), SkipParser()]
readme = Sybil(in_markdown, path=".", pattern="README.md")
pages = Sybil(in_markdown, path="docs", pattern="*.md", exclude="decisions/*.md")
docstrings = Sybil(
    [DocTestParser()],
    path="src",
    pattern="*.py",
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = SybilCollection([readme, pages, docstrings]).pytest()
