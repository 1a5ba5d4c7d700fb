"""A thin client for etcd: one channel per server, explicit deadlines, and no hidden retries.

Calls go to one server until it fails; then to the next. A server that let a call time out, or that cannot be reached,
is avoided for a while. Every call requires `hasleader`, so a server that is cut off from the others reports at once
that it has no leader, instead of hanging.

Transactions are **hedged**: if there is no answer after a while, the same transaction goes to another server as well,
and the first answer counts. So a server that hangs costs only that while, not the whole timeout. This is safe because
these transactions may be carried out twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from aetcd.rpc import rpc_pb2 as messages

from ..._etcd_channels import (
    NOT_SENT,
    SHUN_SECONDS,
    TOKEN_IS_OLD,
    channel_options,
    credentials_of,
)
from ...errors import ConfigError
from .transactions import (
    CreatedAt,
    Exchanged,
    Found,
    Item,
    NotDone,
    Put,
    Read,
    Rejected,
    TooLarge,
    TransactionResult,
    Unsure,
    end_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from .options import EtcdOptions
    from .transactions import Condition, Operation, Step

CALL_S: Final = 2.0
HEDGE_S: Final = 0.05
PAGE: Final = 256
SILENCE_S: Final = 5.0
"""A watch without any answer for this long, heartbeats included, counts as broken."""
MAX_MESSAGE_BYTES: Final = 512 * 1024 * 1024
METHODS: Final = {
    "Range": ("KV/Range", messages.RangeRequest, messages.RangeResponse),
    "Txn": ("KV/Txn", messages.TxnRequest, messages.TxnResponse),
    "Compact": ("KV/Compact", messages.CompactionRequest, messages.CompactionResponse),
    "Grant": ("Lease/LeaseGrant", messages.LeaseGrantRequest, messages.LeaseGrantResponse),
    "Revoke": ("Lease/LeaseRevoke", messages.LeaseRevokeRequest, messages.LeaseRevokeResponse),
    "Status": ("Maintenance/Status", messages.StatusRequest, messages.StatusResponse),
    "Authenticate": (
        "Auth/Authenticate",
        messages.AuthenticateRequest,
        messages.AuthenticateResponse,
    ),
}
NO_SUCH_LEASE: Final = "requested lease not found"
_CODE = grpc.StatusCode
EQUAL: Final = messages.Compare.EQUAL


class AsyncEtcdClient:
    """Calls to a cluster, from one event loop."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        credentials = _credentials(options)
        self._servers = [_EtcdChannel(host, credentials) for host in options.hosts]
        self._token = ""

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[Operation],
        *,
        timeout: float = CALL_S,  # noqa: ASYNC109 - gRPC has its own deadlines
    ) -> TransactionResult:
        """Carry out all operations if all conditions hold; hedged, so they must be safe to carry out twice."""
        reply = await self._hedged("Txn", _branching(conditions, operations), timeout)
        return TransactionResult(reply.succeeded, reply.header.revision)

    async def exchange(
        self,
        operations: Sequence[Operation],
        prefix: str,
        known: Sequence[Condition],
        others: Sequence[str],
    ) -> Exchanged:
        """Write, and read all keys that begin with `prefix`; also `others`, unless `known` holds.

        Atomic, and sent only once.
        """
        usual: list[Step] = [*operations, Read(prefix, end_of(prefix))]
        more = [Read(one, end_of(one)) for one in others]
        return _exchanged(await self._ask("Txn", _branching(known, usual, [*usual, *more])))

    async def branch(
        self, conditions: Sequence[Condition], steps: Sequence[Step], others: Sequence[Step]
    ) -> Exchanged:
        """Carry out `steps` if all conditions hold, otherwise `others`, and return what was read.

        Atomic, and hedged, so it must be safe to carry out twice.
        """
        return _exchanged(await self._hedged("Txn", _branching(conditions, steps, others), CALL_S))

    async def replace(self, key: str, operations: Sequence[Operation]) -> bytes | None:
        """Write, and return the previous value of `key`. Atomic, and sent only once."""
        reply = await self._ask("Txn", _branching((), [Read(key), *operations]))
        found = [kv.value for kv in reply.responses[0].response_range.kvs]
        return found[0] if found else None

    async def read(self, key: str, end: str = "") -> Found:
        """One key, or all from `key` up to `end`, at one revision."""
        items: list[Item] = []
        revision = 0
        while True:
            request = messages.RangeRequest(
                key=key.encode(), range_end=end.encode(), limit=PAGE, revision=revision
            )
            reply = await self._ask("Range", request)
            revision = revision or reply.header.revision
            items += map(_item, reply.kvs)
            if not reply.more:
                return Found(items, revision)
            key = items[-1].key + "\0"

    async def grant(self, ttl_s: float) -> tuple[int, float]:
        """Create a lease; returns its id and its actual TTL."""
        reply = await self._ask("Grant", messages.LeaseGrantRequest(TTL=max(1, round(ttl_s))))
        return reply.ID, float(reply.TTL)

    async def keep_alive(self, lease: int, timeout: float) -> bool:  # noqa: ASYNC109
        """Renew a lease; false if it does not exist (any more)."""
        problem: Exception | None = None
        for server in self._in_order():
            call = server.keep_alive(metadata=await self._metadata())
            try:
                async with asyncio.timeout(timeout):
                    await call.write(messages.LeaseKeepAliveRequest(ID=lease))
                    reply = await call.read()
                if reply is not grpc.aio.EOF:
                    return bool(reply.TTL > 0)
            except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError) as error:
                problem = error
                server.shun()
            finally:
                call.cancel()
        raise NotDone(f"no server renews the lease ({problem})")

    async def revoke(self, lease: int) -> None:
        """End a lease, which deletes its keys; no error if it has ended already."""
        try:
            await self._ask("Revoke", messages.LeaseRevokeRequest(ID=lease))
        except NotDone as error:
            if NO_SUCH_LEASE not in str(error):
                raise

    async def compact(self, revision: int) -> None:
        """Drop the history before a revision; no error if that is done already."""
        with contextlib.suppress(NotDone):
            await self._ask("Compact", messages.CompactionRequest(revision=revision))

    async def version(self) -> str:
        """The version of the server that answers."""
        return str((await self._ask("Status", messages.StatusRequest())).version)

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[None]:
        """Yield when something under `prefix` may have changed after `revision`; ends when the server goes silent."""
        server = self._in_order()[0]
        call = server.watch(metadata=await self._metadata())
        create = messages.WatchCreateRequest(
            key=prefix.encode(), range_end=end_of(prefix).encode(), start_revision=revision + 1
        )
        try:
            await call.write(messages.WatchRequest(create_request=create))
            while True:
                reply = await self._next_event(call)
                if reply is grpc.aio.EOF or reply.canceled:
                    return
                if reply.events:
                    yield None
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            server.shun()
        finally:
            call.cancel()

    @staticmethod
    async def _next_event(call: Any) -> Any:
        """The next reply on a watch. A hanging server looks like an idle one, so it is asked for progress."""
        reading = asyncio.ensure_future(call.read())
        try:
            for _ in range(2):
                done, _ = await asyncio.wait([reading], timeout=SILENCE_S / 2)
                if done:
                    return reading.result()
                progress = messages.WatchProgressRequest()
                await call.write(messages.WatchRequest(progress_request=progress))
            raise TimeoutError
        finally:
            reading.cancel()

    async def close(self) -> None:
        """Close every channel."""
        await asyncio.gather(*(server.channel.close() for server in self._servers))

    def _in_order(self) -> list[_EtcdChannel]:
        """All servers, those that failed recently last."""
        now = time.monotonic()
        return sorted(self._servers, key=lambda server: max(0.0, server.shunned_until - now))

    async def _ask(self, method: str, request: Any, timeout: float = CALL_S) -> Any:  # noqa: ASYNC109
        """Try one server after another, until one has carried the call out, or may have."""
        problem = NotDone("there is no server")
        for server in self._in_order():
            try:
                return await self._attempt(server, method, request, timeout)
            except TooLarge:
                raise
            except NotDone as error:
                problem = error
        raise problem

    async def _hedged(self, method: str, request: Any, timeout: float) -> Any:  # noqa: ASYNC109
        """Try the next server as well if one takes long; the first answer counts."""
        unsure: Unsure | None = None
        problem: NotDone | None = None
        calls: set[asyncio.Task[Any]] = set()
        servers = iter(self._in_order())
        try:
            while True:
                server = next(servers, None)
                if server is not None:
                    attempt = self._attempt(server, method, request, timeout)
                    calls.add(asyncio.ensure_future(attempt))
                if not calls:
                    break
                wait = HEDGE_S if server is not None else None
                done, calls = await asyncio.wait(
                    calls, timeout=wait, return_when=asyncio.FIRST_COMPLETED
                )
                for call in done:
                    error = call.exception()
                    if error is None:
                        return call.result()
                    if isinstance(error, Unsure):
                        unsure = error
                    elif isinstance(error, NotDone):
                        problem = error
                    else:
                        raise error
        finally:
            for call in calls:
                call.cancel()
        raise unsure or problem or NotDone("there is no server")

    async def _attempt(
        self, server: _EtcdChannel, method: str, request: Any, seconds: float
    ) -> Any:
        for again in (False, True):
            metadata = await self._metadata()
            try:
                return await server.calls[method](request, timeout=seconds, metadata=metadata)
            except grpc.RpcError as error:
                if again or not self._is_about_token(error):
                    if error.code() in (_CODE.UNAVAILABLE, _CODE.DEADLINE_EXCEEDED):
                        server.shun()
                    _explain(error)
                self._token = ""
        raise AssertionError  # The second round has returned or raised.

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        plain = (("hasleader", "true"),)
        if not self._options.username:
            return plain
        if not self._token:
            self._token = await self._authenticate()
        return (*plain, ("token", self._token))

    async def _authenticate(self) -> str:
        request = messages.AuthenticateRequest(
            name=self._options.username, password=self._options.password
        )
        problem: grpc.RpcError | None = None
        for server in self._in_order():
            try:
                reply = await server.calls["Authenticate"](request, timeout=CALL_S)
            except grpc.RpcError as error:
                problem = error
                if error.code() not in (_CODE.UNAVAILABLE, _CODE.DEADLINE_EXCEEDED):
                    raise Rejected(f"etcd refused: {error.details()}") from error
                server.shun()
            else:
                return str(reply.token)
        raise NotDone(f"etcd does not answer: {problem}")

    def _is_about_token(self, error: grpc.RpcError) -> bool:
        if not self._options.username:
            return False
        said = str(error.details())
        return error.code() == _CODE.UNAUTHENTICATED or any(words in said for words in TOKEN_IS_OLD)


class _EtcdChannel:
    """One server and its channel."""

    def __init__(self, host: str, credentials: grpc.ChannelCredentials | None) -> None:
        options = channel_options(MAX_MESSAGE_BYTES)
        self.channel = (
            grpc.aio.insecure_channel(host, options)
            if credentials is None
            else grpc.aio.secure_channel(host, credentials, options)
        )
        self.calls = {
            name: self.channel.unary_unary(
                f"/etcdserverpb.{path}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            for name, (path, request, response) in METHODS.items()
        }
        self.watch = self.channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=messages.WatchRequest.SerializeToString,
            response_deserializer=messages.WatchResponse.FromString,
        )
        self.keep_alive = self.channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=messages.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=messages.LeaseKeepAliveResponse.FromString,
        )
        self.shunned_until = 0.0

    def shun(self) -> None:
        self.shunned_until = time.monotonic() + SHUN_SECONDS


def _explain(error: grpc.RpcError) -> NoReturn:
    """Raise what a failed call means: certainly not carried out, or perhaps."""
    code, said = error.code(), str(error.details())
    message = f"etcd does not answer: {code.name.lower()}, {said}"
    if code == _CODE.UNAVAILABLE and any(words in said for words in NOT_SENT):
        raise NotDone(message) from error
    if code in (
        _CODE.DEADLINE_EXCEEDED,
        _CODE.UNAVAILABLE,
        _CODE.CANCELLED,
        _CODE.UNKNOWN,
        _CODE.INTERNAL,
    ):
        raise Unsure(message) from error
    if code == _CODE.INVALID_ARGUMENT and "too large" in said:
        raise TooLarge(said) from error
    raise Rejected(f"etcd refused: {said}") from error


def _item(kv: Any) -> Item:
    return Item(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision)


def _branching(
    conditions: Sequence[Condition], steps: Sequence[Step], others: Sequence[Step] = ()
) -> Any:
    return messages.TxnRequest(
        compare=[_compared(one) for one in conditions],
        success=[_operation(one) for one in steps],
        failure=[_operation(one) for one in others],
    )


def _exchanged(reply: Any) -> Exchanged:
    found = [
        _item(kv)
        for part in reply.responses
        if part.HasField("response_range")
        for kv in part.response_range.kvs
    ]
    return Exchanged(reply.succeeded, found, reply.header.revision)


def _compared(condition: Condition) -> Any:
    key, revision = condition
    if isinstance(condition, CreatedAt):
        created = messages.Compare.CREATE
        return messages.Compare(
            result=EQUAL, target=created, key=key.encode(), create_revision=revision
        )
    changed = messages.Compare.MOD
    return messages.Compare(result=EQUAL, target=changed, key=key.encode(), mod_revision=revision)


def _operation(step: Step) -> Any:
    if isinstance(step, Put):
        key, value, lease = step
        put = messages.PutRequest(key=key.encode(), value=value, lease=lease)
        return messages.RequestOp(request_put=put)
    key, end = step
    if isinstance(step, Read):
        read = messages.RangeRequest(key=key.encode(), range_end=end.encode())
        return messages.RequestOp(request_range=read)
    delete = messages.DeleteRangeRequest(key=key.encode(), range_end=end.encode())
    return messages.RequestOp(request_delete_range=delete)


def _credentials(options: EtcdOptions) -> grpc.ChannelCredentials | None:
    if not options.tls:
        return None
    try:
        return credentials_of(options.ca_file, options.key_file, options.cert_file)
    except OSError as error:
        raise ConfigError(f"{options}: {error.filename}: {error.strerror}") from None
