"""The kill switch: turns off all limits or those of single rules, whatever the state of everything else.

It is a file, or a value in this process's memory, so it needs no store and no network. A request whose limits are off
passes and is not counted; its decision says so (`source` is `open`, and `reason` why). With everything off, bans do not
apply either.

The file is plain text: one line per rule, with its id and then the reason, or `*` instead of the id for everything.
Empty lines and lines that begin with `#` are ignored. A missing file turns nothing off. An unreadable file changes
nothing, and is logged. A file is replaced only if this module has written it, or if each of its lines could be one of
a kill switch: somebody may have named the wrong file.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .._atomic_file import replace_file
from ..charge import require_cost, require_key
from ..decision import NO_LIMIT, UNLIMITED, Context, Decision
from ..errors import ConfigError, UsageError
from .base import Found, Guard, HitGuard

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from ..algorithms import Limit
    from ..charge import ChargeSet

EVERYTHING: Final = "*"
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
HEADER: Final = (
    "# Limits that are turned off: a rule id, or * for everything, followed by the reason.\n"
)
LINE: Final = re.compile(
    r"\s*(\*|[A-Za-z0-9][A-Za-z0-9._:@-]*(?<!:))(\s(?!\s*=)[^\x00-\x08\x0e-\x1f\x7f]*)?"
)
"""What people write: a rule's id and a reason, but not `rules:` or `port = 8080`."""
MAX_BYTES: Final = 1_048_576
MAX_TOKENS: Final = 65_536
log: Final = logging.getLogger("headgate")


class KillSwitch:
    """What is turned off: rule ids, or `*`, each with a reason."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.off: Mapping[str, str] = NOTHING
        """Immutable: a change replaces it. Checked by every hit, and nearly always empty."""
        self._seen: object = None
        self._problem = ""
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Reread the file if it has changed; cheap if it has not."""
        if self.path is None:
            return
        try:
            seen: object = None
            if self.path.exists():
                stat = self.path.stat()
                seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen or self._problem:
                self._swap(NOTHING if seen is None else _read(self.path))
                self._seen, self._problem = seen, ""
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the kill switch in %s cannot be read: %s", self.path, error)

    def turn_off(self, what: str = EVERYTHING, reason: str = "") -> None:
        """Turn off the limits of a rule, or all. Takes effect, and is written to the file, before this returns."""
        if not what or what.startswith("#") or len(what.split()) != 1:
            raise UsageError(f"{what!r} is not the id of a rule")
        with self._lock:
            self._keep({**self._to_change(), what: " ".join(reason.split())})

    def turn_on(self, what: str = EVERYTHING) -> bool:
        """Turn them back on; false if they were not off."""
        with self._lock:
            off = self._to_change()
            if what not in off:
                return False
            self._keep({one: why for one, why in off.items() if one != what})
            return True

    def is_off(self, rule: str | None) -> bool:
        """Whether the limits of a rule, or those without a rule, are off."""
        return EVERYTHING in self.off or (rule is not None and rule in self.off)

    def reason(self, rule: str | None) -> str:
        """The reason to put into decisions."""
        why = self.off.get(rule or EVERYTHING) or self.off.get(EVERYTHING, "")
        return f"limits are turned off: {why}" if why else "limits are turned off"

    def _to_change(self) -> Mapping[str, str]:
        """What is off now: another process may have just written the file."""
        return self.off if self.path is None else require_kill_switch(self.path)

    def _keep(self, off: Mapping[str, str]) -> None:
        if self.path is not None:
            lines = [f"{what} {why}".rstrip() for what, why in sorted(off.items())]
            content = HEADER + "".join(f"{line}\n" for line in lines)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self.path, content.encode())
            except OSError as error:
                raise ConfigError(
                    f"the kill switch in {self.path} cannot be written: {error}"
                ) from error
        self._swap(off)

    def _swap(self, off: Mapping[str, str]) -> None:
        if dict(off) == dict(self.off):
            return
        self.off = MappingProxyType(dict(off))
        if off:
            log.warning("limits are turned off: %s", ", ".join(sorted(off)))
        else:
            log.warning("all limits are on again")


class KillSwitchGuard(Guard):
    """Lets requests pass whose limits are off. It is the outermost guard."""

    def __init__(self, switch: KillSwitch) -> None:
        self.switch = switch
        self._left: dict[str, list[int]] = {}
        """Which charges of a reservation are counted, by its token, if not all are; forgotten if there are too many."""

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard:
        """See `Guard.for_limit`."""
        switch = self.switch

        def before(key: str, cost: int) -> Found:
            if not switch.off or not switch.is_off(rule):
                return None
            require_key(key)
            require_cost(cost)
            return self._passed(key, rule)

        def passes(_keys: Sequence[str]) -> bool:
            return not switch.off or not switch.is_off(rule)

        return HitGuard(before, passes=passes)

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        switch = self.switch
        if not switch.off:
            return request
        charges = request.charges
        left = [place for place, one in enumerate(charges) if not switch.is_off(one.rule)]
        if len(left) == len(charges):
            return request
        for charge in charges:
            require_key(charge.key)
        token = request.token
        if request.reserve_us and token is None:
            token = secrets.token_hex(16)
        if left:
            if request.reserve_us and token is not None:
                self._remember(token, left)
            return request._replace(charges=tuple(charges[place] for place in left), token=token)
        return self._passed(charges[0].key, charges[0].rule, token)

    def _remember(self, token: str, left: list[int]) -> None:
        if len(self._left) >= MAX_TOKENS:
            self._left.clear()
        self._left[token] = left

    def settling(self, token: str, actual: int | Sequence[int]) -> int | Sequence[int]:
        """See `Guard.settling`."""
        left = self._left.get(token)
        if left is None or isinstance(actual, int) or len(actual) <= left[-1]:
            return actual
        return [actual[place] for place in left]

    def closed(self, token: str) -> None:
        """See `Guard.closed`."""
        if self._left:
            self._left.pop(token, None)

    def _passed(self, key: str, rule: str | None, token: str | None = None) -> Decision:
        context = Context(
            "open", degraded=True, rule=rule, token=token, reason=self.switch.reason(rule)
        )
        return Decision(key, NO_LIMIT, UNLIMITED, context)


def require_kill_switch(path: Path) -> Mapping[str, str]:
    """What a file turns off that is about to be replaced, or raise `ConfigError` if it is not a kill switch."""
    try:
        if not path.exists():
            return NOTHING
        text = _text(path) if path.is_file() else None
    except (OSError, ValueError) as error:
        why = error.strerror or "" if isinstance(error, OSError) else str(error)
        raise _refusal(path, why) from error
    if text is None:
        raise _refusal(path, "it is not a file")
    if not text.startswith(HEADER):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#") and not LINE.fullmatch(line):
                why = f"line {number} is not a rule id, or *, and a reason: {line[:60]!r}"
                raise _refusal(path, why)
    return _parsed(text)


def _refusal(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used as a kill switch, and was not changed: {why}; "
        "name another file, or correct or remove this one"
    )


def _read(path: Path) -> Mapping[str, str]:
    return _parsed(_text(path))


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8: {error.reason} at byte {error.start}") from None


def _parsed(text: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(maxsplit=1)
        if words and not words[0].startswith("#"):
            found[words[0]] = words[1].strip() if len(words) > 1 else ""
    return found
