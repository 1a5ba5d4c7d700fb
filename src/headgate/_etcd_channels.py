"""What both clients of etcd set up in the same way: their channels, and how they read what went wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

SHUN_SECONDS: Final = 5.0
"""How long a server that failed is tried last."""
NOT_SENT: Final = ("failed to connect", "no leader", "connections to all backends failing")
"""Messages of an UNAVAILABLE that prove the request was not carried out."""
TOKEN_IS_OLD: Final = ("invalid auth token", "revision in header is old")
"""Messages after which to authenticate again."""


def channel_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Options of a channel: it reconnects fast, retries nothing, and is not shared."""
    return [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.use_local_subchannel_pool", 1),  # A separate channel, not one shared by address.
    ]


def credentials_of(
    ca_file: str | None, key_file: str | None, cert_file: str | None
) -> grpc.ChannelCredentials:
    """Credentials for TLS from these files; raises `OSError` if one cannot be read."""
    files = (ca_file, key_file, cert_file)
    return grpc.ssl_channel_credentials(
        *[None if file is None else Path(file).read_bytes() for file in files]
    )
