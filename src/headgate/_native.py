"""Hints to the compiler of the compiled build; in Python they do nothing.

They come from `mypy_extensions`, which is not needed to run Headgate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_extensions import mypyc_attr as mypyc_attr  # noqa: PLC0414 - offered from here
else:

    def mypyc_attr(**_: object) -> Callable[[type], type]:
        """Annotate a class for the compiler."""
        return lambda decorated: decorated
