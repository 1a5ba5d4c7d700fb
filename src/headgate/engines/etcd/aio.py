"""The async etcd engine: finds the shard of a key, and decides there or asks the node that owns it.

A hit on a shard of this node needs no coroutine: a decision that depends on nothing unconfirmed is returned, any other
is a future that the commit resolves. Everything unusual (a shard that is not here, a late commit, a lease that is not
renewed) waits in `_hit_later` until the caller's deadline.

A request over several shards runs step by step, as over the slots of a Redis Cluster (see `cross_slot.py`). If this
node owns all of them, nothing comes between the steps, and one commit contains all of it.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import TYPE_CHECKING, Any, Final

from ...charge import Charge, ChargeSet, other_charges, require_costs, require_key
from ...decision import Decision
from ...errors import EngineError
from ..base import EngineDescription, Hooks, KeyEntry, KeyPage, Usage, hooked, require_page
from ..redis.cross_slot import PeekStep, Take, UndoStep, charges_of, decide_across_slots, groups_of
from .client import AsyncEtcdClient
from .incarnation import not_decided, unknown
from .kind import description_of
from .names import named, pieces_of, place_of
from .nodes import EtcdNodes
from .options import PEER, EtcdOptions, parse_url
from .peer_calls import peer_handler
from .state_cells import require_storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Self

    from ...algorithms import Limit
    from ...clock import Clock
    from ..base import AsyncHit, HookedHit
    from ..remote.serving import Handler
    from .incarnation import Incarnation
    from .node import EtcdNode
    from .peers import PeerEngine
    from .records import Member
    from .shard import Shard, ShardEngine
    from .transactions import Store

MOST_NUMBERS: Final = 200_000
"""How many keys have their shard cached; hashing a key costs as much as a decision."""
MAX_FORMS: Final = 4_096
"""How many limits have a number; callers of a service may name any."""
PEER_PART: Final = 0.75
"""The part of the deadline that a peer may use, so that the asking node gets its answer in time."""
LOOK_AGAIN_S: Final = 0.05


class AsyncEtcdEngine:
    """Stores states on etcd, with this process as one of the nodes. Lives in one event loop.

    `connect` creates the client for etcd.
    """

    nowait = None

    def __init__(
        self,
        url: str | EtcdOptions,
        *,
        clock: Clock | None = None,
        connect: Callable[[EtcdOptions], Store] = AsyncEtcdClient,
    ) -> None:
        self.options = parse_url(url) if isinstance(url, str) else url
        self.nodes = EtcdNodes(self.options, clock, connect)
        self.clock: Clock = self.nodes.clock
        self._namespace = ""
        self._numbers: dict[str, int] = {}
        self._forms: dict[tuple[str, str | None, Limit], int] = {}
        self._new_form = itertools.count(1)  # Shards and peers may know old ones: none comes twice.
        self._forwards = True
        """Whether it asks other nodes; false when it answers another node."""

    def scoped(self, namespace: str) -> Self:
        """The same node, under another namespace."""
        twin = copy.copy(self)
        twin._namespace = namespace
        return twin

    @property
    def peer_commands(self) -> dict[bytes, Handler]:
        """The commands for other nodes, on the Redis port of this one."""
        return {} if not self.options.listen else {PEER: peer_handler(self)}

    def for_peers(self) -> Self:
        """The same node for calls of other nodes: it answers for its own shards only, and before they give up."""
        twin = copy.copy(self)
        twin._namespace, twin._forwards = "", False
        return twin

    @property
    def unguarded(self) -> Self:
        """See `Engine.unguarded`."""
        return self

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return description_of(self.options, self.nodes.meter, self._namespace)

    # Hits

    def bind(self, limit: Limit, rule: str | None = None) -> AsyncHit:
        """A function that takes units of `limit` for a key."""
        require_storable(limit)
        form = self._form(limit, rule)
        numbers, namespace = self._numbers, self._namespace
        serving, find = self.nodes.serving, self._number

        def hit(key: str, cost: int) -> Decision | Awaitable[Decision]:
            if serving:
                number = numbers.get(key)
                shard = serving[find(key) if number is None else number]
                if shard is not None and (now := shard.own.time()) < shard.own.open_until:
                    take, marks = shard.hits.get(form) or shard.bound(form, namespace, limit, rule)
                    decision = take(key, cost)
                    if (
                        key in marks.dirty
                        or key in marks.flying
                        or (decision.context.degraded and not shard.is_confirmed)
                    ):
                        confirmed: Decision | Awaitable[Decision] = shard.own.confirm(decision, now)
                        return confirmed
                    return decision
            return self._hit_later(form, limit, rule, Charge(key, limit, cost, rule=rule))

        return hit

    def _form(self, limit: Limit, rule: str | None) -> int:
        """The number by which functions that take units are found."""
        asked = (self._namespace, rule, limit)
        if len(self._forms) >= MAX_FORMS:
            self._forms.clear()
        return self._forms.get(asked) or self._forms.setdefault(asked, next(self._new_form))

    async def _hit_later(
        self, form: int, limit: Limit, rule: str | None, charge: Charge
    ) -> Decision:
        """A hit on a shard that is elsewhere, or not open now."""
        ends = self._ends()
        await self.nodes.ready(ends)
        request = ChargeSet((charge,))
        number = self._number(charge.key)

        async def ask(owner: Member) -> Decision:
            hit = self.nodes.of(number).peers.hit(owner, form, self._namespace, limit, rule)
            answer = hit(charge.key, charge.cost)
            return answer if isinstance(answer, Decision) else await answer

        decision: Decision = await self._at(
            number, lambda engine: engine.decide([request])[0], ask, ends, request
        )
        return decision

    def bind_hooked(self, limit: Limit, rule: str | None, hooks: Hooks) -> HookedHit:
        """See `AsyncEngine.bind_hooked`."""
        return hooked(self.bind(limit, rule), hooks)

    # Decisions

    async def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """Decide each request, all or nothing."""
        ends = self._ends()
        for request in requests:
            for charge in request.charges:
                require_key(charge.key)
                for limit in charge.limits:
                    require_storable(limit)
        if len(requests) == 1:
            return [await self._decide(requests[0], ends)]
        return list(await asyncio.gather(*(self._decide(one, ends) for one in requests)))

    async def _decide(self, request: ChargeSet, ends: float) -> Decision:
        await self.nodes.ready(ends)
        pieces = groups_of(request, self._tag)
        if len(pieces) == 1:
            return await self._decide_in_one(request, ends)
        steps = decide_across_slots(request, pieces)
        outcome: Any = None
        failure: EngineError | None = None
        taken: list[str] = []
        try:
            while True:
                step = steps.throw(failure) if failure else steps.send(outcome)
                outcome = failure = None
                try:
                    outcome = await self._across(step, taken, ends)
                except EngineError as error:
                    failure = error
        except StopIteration as done:
            decision: Decision = done.value
            return decision
        except asyncio.CancelledError:
            for token in taken:
                await asyncio.shield(self.settle(token, 0))
            raise

    async def _across(self, step: PeekStep | Take | UndoStep, taken: list[str], ends: float) -> Any:
        match step:
            case PeekStep(request):
                return await self.look(request, ends)
            case Take(request, name):
                decision = await self._decide_in_one(request._replace(token=name), ends)
                if decision.token is not None:
                    taken.append(decision.token)
                return decision
            case UndoStep(token):
                await self.settle(token, 0)
                return None

    async def look(self, request: ChargeSet, ends: float | None = None) -> Decision:
        """The answer that a request in one shard would get if it were denied elsewhere; nothing changes."""
        await self.nodes.ready(self._ends())
        number = self._number(request.charges[0].key)
        decision: Decision = await self._at(
            number,
            lambda engine: engine.look(request),
            lambda owner: self._peer(number, owner).look(request),
            ends,
            request,
        )
        return decision

    async def _decide_in_one(self, request: ChargeSet, ends: float) -> Decision:
        """Decide a request whose charges are all in one shard."""
        number = self._number(request.charges[0].key)

        def decide(engine: ShardEngine) -> Decision:
            (decision,) = engine.decide([request])
            if request.reserve_us and decision.token is not None:
                return named(decision, f"{decision.token}@{number}")
            return decision

        async def ask(owner: Member) -> Decision:
            (decision,) = await self._peer(number, owner).decide([request])
            return decision

        decided: Decision = await self._at(number, decide, ask, ends, request)
        return decided

    # The other verbs

    async def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """Correct a reservation to the actual cost, once."""
        used = require_costs(actual)
        pieces = pieces_of(token)
        if len(pieces) == 1:
            return await self._settle_one(*pieces[0], used)
        charges = sum(len(charges_of(name)) for name, _ in pieces)
        if len(used) > 1 and 0 < charges != len(used):
            raise other_charges(len(used))
        found = []
        for name, number in pieces:
            own = [used[place] for place in charges_of(name)] if len(used) > 1 else used
            found.append(await self._settle_one(name, number, own or used))
        return bool(found) and all(found)

    async def _settle_one(self, name: str, number: int, used: Sequence[int]) -> bool:
        settled: bool = await self._at(
            number,
            lambda engine: engine.settle(name, used),
            lambda owner: self._peer(number, owner).settle(f"{name}@{number}", used),
        )
        return settled

    async def withdraw(self, request: ChargeSet) -> None:
        """Give back what a request has reserved."""
        if request.token is None or not request.reserve_us:
            return
        await self.nodes.ready(self._ends())
        pieces = groups_of(request, self._tag)
        for piece in pieces:
            name = request.token if len(pieces) == 1 else piece.name
            await self._settle_one(name, self._number(piece.request.charges[0].key), (0,))

    async def leave_line(self, decision: Decision) -> None:
        """Give up a place in line; it is given back once nobody waits behind it."""
        if decision.context.mark is not None:
            await self._of_key(decision.key, "leave_line", decision)

    async def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """Hold slots for another term."""
        held: bool = await self._of_key(key, "renew", key, limit, token, rule)
        return held

    async def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """Release slots."""
        await self._of_key(key, "release", key, limit, token, rule)

    async def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """What the key has used, and the answer that a hit of one unit would get."""
        usage: Usage = await self._of_key(key, "usage", key, limit, rule)
        return usage

    async def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """Forget what the key has used."""
        await self._of_key(key, "reset", key, limit, rule)

    async def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """Keys in use, shard by shard; the cursor names the shard and the position in it."""
        require_page(prefix, cursor, limit)
        number, inner = place_of(cursor)
        await self.nodes.ready(self._ends())
        entries: list[KeyEntry] = []
        while number < len(self.nodes.serving):
            left = limit - len(entries)
            if not left:
                return KeyPage(entries, f"{number}:{inner}")
            page = await self._at(
                number,
                _listing(prefix, inner, left),
                _peer_listing(self, prefix, (number, inner), left),
            )
            entries += page.entries
            inner = page.cursor
            if not self._forwards:  # A peer asks for one shard at a time.
                return KeyPage(entries, f"{number}:{inner}" if inner else "")
            if not inner:
                number += 1
        return KeyPage(entries, "")

    async def hand_over(self) -> None:
        """Let other nodes take over this node's shards, if there are any; it can still be called."""
        await self.nodes.hand_over()

    async def aclose(self) -> None:
        """Hand over this node's shards, and leave the cluster."""
        await self.nodes.leave()

    # Where a shard is

    async def _of_key(self, key: str, verb: str, *arguments: Any) -> Any:
        """Run a verb about a single key, on whichever node owns it."""
        require_key(key)
        await self.nodes.ready(self._ends())
        number = self._number(key)
        return await self._at(
            number,
            lambda engine: getattr(engine, verb)(*arguments),
            lambda owner: getattr(self._peer(number, owner), verb)(*arguments),
        )

    def _peer(self, number: int, owner: Member) -> PeerEngine:
        """The owner of a shard, as an engine."""
        return self.nodes.of(number).peers.engine(owner, self._namespace)

    async def _at(
        self,
        number: int,
        call: Callable[[ShardEngine], Any],
        ask: Callable[[Member], Awaitable[Any]],
        ends: float | None = None,
        request: ChargeSet | None = None,
    ) -> Any:
        """Call the engine of a shard and wait until its answer is confirmed, or ask the shard's owner."""
        if ends is None:
            ends = self._ends()
        node, serving = self.nodes.of(number), self.nodes.serving
        loop = asyncio.get_running_loop()
        while True:
            own = await node.ready(ends)
            shard = serving[number] if number < len(serving) else None
            if shard is not None and own.is_open():
                value = call(shard.scoped(self._namespace))
                if self._is_confirmed(shard, request, value):
                    return value
                confirmed = own.confirm(value, loop.time(), ends)
                return await confirmed if isinstance(confirmed, asyncio.Future) else confirmed
            owner = None if shard is not None else own.map.owner(number)
            if owner is not None and owner.incarnation != own.name:
                if not self._forwards:
                    raise not_decided("another node owns the key's shard")
                try:
                    return await _within(ask(owner), ends)
                except EngineError as error:
                    if error.indefinite or loop.time() >= ends:
                        error.partial = own.is_open()
                        raise
                own.map_changed.set()
            if loop.time() >= ends:
                raise _refusal(node, shard, own)
            # There is no event for a lease or a commit becoming late, so look again in time.
            await node.changed.wait(min(ends - loop.time(), LOOK_AGAIN_S))

    def _is_confirmed(self, shard: Shard, request: ChargeSet | None, value: Any) -> bool:
        """Whether an answer depends only on what is confirmed in etcd."""
        if request is None or request.reserve_us or value.context.degraded:
            return shard.is_confirmed
        for charge in request.charges:
            for limit in charge.limits:
                marks = shard.store.marks.get((self._namespace, charge.rule, limit.identity))
                if marks is not None and (charge.key in marks.dirty or charge.key in marks.flying):
                    return False
        return True

    def _number(self, key: str) -> int:
        number = self._numbers.get(key)
        if number is None:
            assert self.nodes.settings is not None
            if len(self._numbers) >= MOST_NUMBERS:
                self._numbers.clear()
            number = self._numbers[key] = self.nodes.settings.shard_of(require_key(key))
        return number

    def _tag(self, key: str) -> bytes:
        return b"%d" % self._number(key)

    def _ends(self) -> float:
        self.nodes.start()
        deadline = self.options.deadline
        patience = deadline if self._forwards else PEER_PART * deadline
        return asyncio.get_running_loop().time() + patience


def _refusal(node: EtcdNode, shard: Shard | None, own: Incarnation) -> EngineError:
    """Why nothing was decided; a `partial` error if only this shard is affected."""
    error = node.unreachable() if shard is None else not_decided("etcd is late")
    error.partial = node.others_work() or (shard is None and own.is_open())
    return error


async def _within(answer: Awaitable[Any], ends: float) -> Any:
    """The answer of another node, or an error that its outcome is unknown when the time is over."""
    try:
        async with asyncio.timeout_at(ends):
            return await answer
    except TimeoutError:
        raise unknown("the owner of the key's shard does not answer in time") from None


def _listing(prefix: str, cursor: str, limit: int) -> Callable[[ShardEngine], KeyPage]:
    return lambda engine: engine.list_keys(prefix, cursor, limit)


def _peer_listing(
    engine: AsyncEtcdEngine, prefix: str, place: tuple[int, str], limit: int
) -> Callable[[Member], Awaitable[KeyPage]]:
    async def ask(owner: Member) -> KeyPage:
        number, inner = place
        page = await engine._peer(number, owner).list_keys(prefix, f"{number}:{inner}", limit)
        return KeyPage(page.entries, page.cursor.partition(":")[2])

    return ask
