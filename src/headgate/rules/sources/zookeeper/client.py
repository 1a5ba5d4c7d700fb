"""The configuration of kazoo: connection, credentials, ACLs and logging."""

from __future__ import annotations

import logging
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Auth
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl

from ..base import SourceError
from ..location import Location, uses_tls

SESSION_SECONDS: Final = 10.0

kazoo_log = logging.getLogger("headgate.rules.zookeeper.kazoo")
if kazoo_log.level == logging.NOTSET:
    # It logs every attempt to connect; we log every outage, once.
    kazoo_log.setLevel(logging.ERROR)


class _PasswordFilter(logging.Filter):
    """Keeps secrets out of the log: kazoo logs every request at DEBUG, including the password."""

    def filter(self, record: logging.LogRecord) -> bool:
        given = record.args if isinstance(record.args, tuple) else ()
        return "passwd" not in str(record.msg) and not any(isinstance(one, Auth) for one in given)


kazoo_log.addFilter(_PasswordFilter())


def make_client(location: Location) -> Any:
    """A client that keeps trying to connect, and retries nothing else."""
    options = location.options
    secure = uses_tls(location)
    name = f"{location.username}:{location.password}"
    return KazooClient(
        hosts=",".join(location.hosts),
        timeout=options.get("session_timeout", SESSION_SECONDS),
        auth_data=[("digest", name)] if location.username else None,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=2.0),
        command_retry=KazooRetry(max_tries=0),
        logger=kazoo_log,
        use_ssl=secure,
        verify_certs=True,
        check_hostname=secure,
        ca=options.get("ca_file"),
        certfile=options.get("cert_file"),
        keyfile=options.get("key_file"),
    )


def make_acl(location: Location) -> list[Any]:
    """The permissions for the znodes that we create."""
    chosen = location.options.get("acl", "private" if location.username else "open")
    if chosen == "open":
        return list(OPEN_ACL_UNSAFE)
    if not location.username:
        raise SourceError(
            f"acl={chosen} needs an owner of the rules: zookeeper://user:password@host",
            transient=False,
        )
    own = [make_digest_acl(location.username, location.password, all=True)]
    return own if chosen == "private" else [*own, *READ_ACL_UNSAFE]
