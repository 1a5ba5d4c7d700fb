"""A thin client for etcd: one channel per server, explicit deadlines, and no hidden retries.

Calls go to one server until it fails; then to the next. A server that let a call time out, or that cannot be reached,
is avoided for a while. Every call requires `hasleader`, so a server that is cut off from the others reports at once
that it has no leader, instead of hanging.

A call that was certainly not carried out is tried on the next server. A write without an answer raises
`UnknownOutcome`, which the caller has to handle.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
from aetcd.rpc import rpc_pb2 as messages

from ...._etcd_channels import (
    NOT_SENT,
    SHUN_SECONDS,
    TOKEN_IS_OLD,
    channel_options,
    credentials_of,
)
from ..base import SourceError
from ..location import Location, uses_tls
from ..tree_nodes import UnknownOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_SECONDS: Final = 2.0
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
METHODS: Final = {
    "range": ("KV/Range", messages.RangeRequest, messages.RangeResponse),
    "put": ("KV/Put", messages.PutRequest, messages.PutResponse),
    "delete": ("KV/DeleteRange", messages.DeleteRangeRequest, messages.DeleteRangeResponse),
    "transact": ("KV/Txn", messages.TxnRequest, messages.TxnResponse),
    "authenticate": (
        "Auth/Authenticate",
        messages.AuthenticateRequest,
        messages.AuthenticateResponse,
    ),
}


class EtcdClient:
    """Calls to a cluster. May be used from any thread."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._timeout: float = location.options.get("timeout", TIMEOUT_SECONDS)
        self._credentials = _credentials(location)
        self._servers = [_Server(host, self._credentials) for host in location.hosts]
        self._token = ""
        self._closed = False
        self._authenticating = threading.Lock()

    def call(self, method: str, request: Any, *, writing: bool = False) -> Any:
        """Call the cluster; raises `SourceError`, or `UnknownOutcome` for a write that may have been carried out."""
        problem: SourceError | None = None
        for server in self._in_order():
            if self._closed:
                raise SourceError(f"{self._location} is closed", transient=False)
            try:
                return self._call_one(server, method, request)
            except ValueError:  # A channel that was closed meanwhile raises this.
                continue
            except grpc.RpcError as error:
                problem = self._explained(error, writing=writing)
                if not problem.transient or isinstance(problem, UnknownOutcome):
                    raise problem from error
        raise problem or SourceError(f"{self._location} is closed", transient=False)

    def watch(
        self, requests: Iterator[Any], use: Callable[[Any, Callable[[], None]], None]
    ) -> None:
        """Open a stream of events on one server and pass it to `use`, with a way to end it; returns when it ends."""
        try:
            metadata = self._metadata()  # This may have to get a token first.
        except grpc.RpcError as error:
            raise self._explained(error, writing=False) from error
        server = self._in_order()[0]
        try:
            stream = server.watch(requests, metadata=metadata)
        except ValueError:  # A channel that was closed meanwhile raises this.
            raise SourceError(f"{self._location} is closed", transient=False) from None
        try:
            use(stream, stream.cancel)
        except grpc.RpcError as error:
            server.shun()
            if self._is_about_token(error):
                self._forget_token(metadata)
            raise self._explained(error, writing=False) from error
        finally:
            stream.cancel()

    def close(self) -> None:
        """Close every channel."""
        self._closed = True
        for server in self._servers:
            server.close()

    def _in_order(self) -> list[_Server]:
        """All servers, those that failed recently last."""
        now = time.monotonic()
        return sorted(self._servers, key=lambda server: max(0.0, server.shunned_until - now))

    def _call_one(self, server: _Server, method: str, request: Any) -> Any:
        metadata = self._metadata()
        try:
            return server.calls[method](request, timeout=self._timeout, metadata=metadata)
        except grpc.RpcError as error:
            if not self._is_about_token(error):
                server.shun_if_at_fault(error)
                raise
        self._forget_token(metadata)
        return server.calls[method](request, timeout=self._timeout, metadata=self._metadata())

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        plain = (("hasleader", "true"),)
        if not self._location.username:
            return plain
        with self._authenticating:
            if not self._token:
                self._token = self._authenticate()
            return (*plain, ("token", self._token))

    def _forget_token(self, metadata: tuple[tuple[str, str], ...]) -> None:
        with self._authenticating:
            # Otherwise another thread has replaced it already.
            if ("token", self._token) in metadata:
                self._token = ""

    def _authenticate(self) -> str:
        request = messages.AuthenticateRequest(
            name=self._location.username, password=self._location.password
        )
        failed: grpc.RpcError | None = None
        for server in self._in_order():
            try:
                answer = server.calls["authenticate"](request, timeout=self._timeout)
                return str(answer.token)
            except grpc.RpcError as error:
                server.shun_if_at_fault(error)
                failed = error
                if error.code() not in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                ):
                    break
        assert failed is not None
        raise failed

    def _is_about_token(self, error: grpc.RpcError) -> bool:
        if not self._location.username:
            return False
        said = str(error.details())
        return error.code() == grpc.StatusCode.UNAUTHENTICATED or any(
            words in said for words in TOKEN_IS_OLD
        )

    def _explained(self, error: grpc.RpcError, *, writing: bool) -> SourceError:
        code, said = error.code(), str(error.details())
        message = f"{self._location} does not answer: {code.name.lower()}, {said}"
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnknownOutcome(message) if writing else SourceError(message)
        if code == grpc.StatusCode.UNAVAILABLE:
            definite = not writing or any(words in said for words in NOT_SENT)
            return SourceError(message) if definite else UnknownOutcome(message)
        if code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
            return UnknownOutcome(message) if writing else SourceError(message)
        return SourceError(f"{self._location} refused: {said}", transient=False)


class _Server:
    """One server and its channel."""

    def __init__(self, host: str, credentials: grpc.ChannelCredentials | None) -> None:
        options = channel_options(MAX_MESSAGE_BYTES)
        self.channel = (
            grpc.insecure_channel(host, options)
            if credentials is None
            else grpc.secure_channel(host, credentials, options)
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
        self.host = host
        self.shunned_until = 0.0

    def shun(self) -> None:
        self.shunned_until = time.monotonic() + SHUN_SECONDS

    def shun_if_at_fault(self, error: grpc.RpcError) -> None:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            self.shun()

    def close(self) -> None:
        self.channel.close()


def _credentials(location: Location) -> grpc.ChannelCredentials | None:
    if not uses_tls(location):
        return None
    files = [location.options.get(name) for name in ("ca_file", "key_file", "cert_file")]
    try:
        return credentials_of(*files)
    except OSError as error:
        raise SourceError(
            f"{location}: {error.filename}: {error.strerror}", transient=False
        ) from None
