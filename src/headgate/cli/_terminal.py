"""What stdout can show: which characters, which colours, and no control characters.

Commands write Unicode; where the locale or the stream cannot show it, `to_ascii` redraws the text with the nearest
plain characters. Colour is for terminals only and never carries meaning by itself.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Final

PLAIN: Final[dict[str, str | int | None]] = dict(
    zip(
        "▁▂▃▄▅▆▇█│┤└┬┘─▲•×µ",
        "..::++##||+++-^*xu",
        strict=True,
    )
)
"""Every character beyond ASCII that a command may print, and what stands in for it."""
GREEN: Final = "32"
RED: Final = "31"
BOLD: Final = "1"


def is_ascii_only(stream: IO[str]) -> bool:
    """Whether `stream` needs plain characters.

    Python writes UTF-8 even with `LC_ALL=C`, but a user who sets that wants plain text.
    """
    if os.environ.get("LC_ALL") in {"C", "POSIX"}:
        return True
    try:
        "".join(PLAIN).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def to_ascii(text: str) -> str:
    """`text` with every drawing character replaced by a plain one."""
    return text.translate(str.maketrans(PLAIN))


def escaped(text: str) -> str:
    r"""`text` on one line, with control characters escaped: ESC becomes `\x1b`."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class Screen:
    """Stdout, with what it can show worked out once."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        if self._stream is None:  # Stdout was closed before the start.
            self._plain = self._coloured = False
            return
        self._plain = is_ascii_only(self._stream)
        self._coloured = (
            self._stream.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    def write(self, text: str = "") -> None:
        """Print one piece of text, in the characters that the stream knows."""
        print(to_ascii(text) if self._plain else text, file=self._stream)

    def paint(self, text: str, colour: str) -> str:
        """`text` in a colour, if there are colours and something to be seen."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured and text.strip() else text
