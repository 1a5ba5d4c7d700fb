"""Run every example as a test: Python blocks in the README and the documentation, and docstrings.

The blocks of one document share one namespace, so a page reads from top to bottom like a script; so
do the docstrings of one module. A decision record quotes code as it was, and is not run. A block
that cannot run here is preceded by `<!-- skip: next -->`.
"""

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser
from sybil.sybil import SybilCollection
from sybil.typing import Parser
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A pattern is matched from the right, so it holds at any depth below `path`.
in_markdown: list[Parser] = [PythonCodeBlockParser(), SkipParser()]
readme = Sybil(in_markdown, path=".", pattern="README.md")
pages = Sybil(in_markdown, path="docs", pattern="*.md", exclude="decisions/*.md")
docstrings = Sybil(
    [DocTestParser()],
    path="src",
    pattern="*.py",
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = SybilCollection([readme, pages, docstrings]).pytest()


class Scheduling(LoadScopeScheduling):
    """Tests go to whichever process is free; the examples of one document stay together.

    (`--dist=loadgroup` would say the same, but xdist 3.8 marks groups in a way pytest 9.2 ignores.)
    """

    def _split_scope(self, nodeid: str) -> str:
        document, _, name = nodeid.partition("::")
        return document if name.startswith("line:") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)
