"""Other nodes, as engines: for shards of other nodes, the owner is asked over its Redis port.

It is the remote engine with another command. The receiver of `HG.PEER` answers itself or not at all, so a call is
forwarded at most once, however old the sender's map is. A node that does not own the shard (any more) says so for each
request, which then was certainly not carried out, and the sender looks again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...errors import ConfigError
from ..redis.failures import Refused
from ..redis.options import Options, tls_context
from ..redis.sending import RoutedCommand
from ..remote.codec import NodeDialect, RemoteCodec
from ..remote.engine import AsyncRemoteEngine
from ..remote.nodes import Nodes
from ..remote.operations import RemoteOperations
from .options import CLOCK, LOOK, PEER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...algorithms import Limit
    from ...charge import ChargeSet
    from ...decision import Decision
    from ..base import AsyncHit
    from ..redis.options import Address
    from ..redis.scripts import Dialect, Script, Words
    from ..redis.topology import Discovery, Topology
    from .options import EtcdOptions
    from .records import Member

MAX_BATCH: Final = 1_024
MAX_FORMS: Final = 4_096
MAX_ENGINES: Final = 1_024


class PeerDialect(NodeDialect):
    """How a node calls another."""

    def words(self, script: Script) -> Words:
        """The first words of a call."""
        return PEER, script.name.encode()


class PeerOperations(RemoteOperations):
    """The verbs, as nodes call them on each other."""

    command: ClassVar[bytes] = PEER


class PeerTopology(Nodes):
    """A single node that is not waited for: if it cannot be reached, its shards may have another owner by now."""

    def forget(self, address: Address) -> None:
        """It did not answer: discover it again before the next call."""
        self._chosen = None

    def discovery(self) -> Discovery:
        """Try it once."""
        reason = yield from super().discovery()
        return None if reason is None else Refused(str(reason))


class PeerEngine(AsyncRemoteEngine):
    """One other node."""

    def _new_topology(self) -> Topology:
        return PeerTopology(self.options)

    def _new_dialect(self) -> Dialect:
        return PeerDialect()

    def _new_operations(self, namespace: str) -> PeerOperations:
        codec = RemoteCodec(namespace, self.clock.now_us)
        return PeerOperations(codec, self.options.max_batch, self._dialect)

    async def look(self, request: ChargeSet) -> Decision:
        """The answer that a request would get; nothing changes."""
        part = self._operations.codec.part(request)
        reply = await self.run(
            RoutedCommand(tuple(self._operations.codec.command((PEER, LOOK), [part])))
        )
        (decision,) = self._operations.answers([part], reply)
        assert decision is not None  # Nodes evaluate calendars themselves.
        return decision

    async def time_us(self) -> int:
        """The current time there."""
        reply = await self.run(RoutedCommand((PEER, CLOCK, 0)))
        return int(reply[0])


class PeerLinks:
    """Connections to other nodes, by incarnation."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self._engines: dict[tuple[str, str], PeerEngine] = {}
        self._hits: dict[tuple[str, int], AsyncHit] = {}
        self._token = _token(options.peer_token_file)
        secure = options.peer_tls or options.peer_ca_file is not None
        files: dict[str, Any] = {"ca_file": options.peer_ca_file} if options.peer_ca_file else {}
        self.tls = tls_context(files, secure=secure, scheme="listen")

    def engine(self, member: Member, namespace: str = "") -> PeerEngine:
        """The engine of a node, for a namespace."""
        key = (member.incarnation, namespace)
        found = self._engines.get(key)
        if found is None:
            if len(self._engines) >= MAX_ENGINES:  # Those without a namespace hold the connections.
                self._engines = {one: engine for one, engine in self._engines.items() if not one[1]}
            if namespace:
                found = self.engine(member).scoped(namespace)
            else:
                host, _, port = member.address.rpartition(":")
                options = Options(
                    "nodes",
                    ((host.strip("[]"), int(port)),),
                    password=self._token,
                    tls=self.tls,
                    deadline=self._options.deadline,
                    max_batch=MAX_BATCH,
                    deny_cache=False,
                )
                found = PeerEngine(options)
            self._engines[key] = found
        return found

    def hit(
        self, member: Member, form: int, namespace: str, limit: Limit, rule: str | None
    ) -> AsyncHit:
        """A function that takes units of a limit on another node."""
        key = (member.incarnation, form)
        found = self._hits.get(key)
        if found is None:
            if len(self._hits) >= MAX_FORMS:
                self._hits.clear()
            found = self._hits[key] = self.engine(member, namespace).bind(limit, rule)
        return found

    async def forget(self, members: Mapping[str, Member]) -> None:
        """Close connections to nodes that are gone."""
        for name, namespace in [key for key in self._engines if key[0] not in members]:
            engine = self._engines.pop((name, namespace))
            if not namespace:
                await engine.aclose()
        for key in [key for key in self._hits if key[0] not in members]:
            del self._hits[key]

    async def close(self) -> None:
        """Close every connection."""
        await self.forget({})


def _token(file: str | None) -> str:
    if file is None:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the peer_token_file {file} cannot be read: {error}") from None
