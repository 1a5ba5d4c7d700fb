"""Who may read and write rules on real servers, and that no password shows anywhere."""

import base64
import contextlib
import gc
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.rules.live.editing import Editor
from headgate.rules.live.following import LiveRules
from headgate.rules.sources.base import RuleStore, SourceError
from headgate.rules.sources.location import parse_location
from headgate.rules.sources.opening import open_store
from tests.servers.etcd import Etcd, EtcdNode, etcd
from tests.servers.fixtures import installed
from tests.servers.link import Link
from tests.servers.process import wait_until
from tests.servers.rule_stores import fresh_url
from tests.servers.zookeeper import ZooKeeper, zookeeper

PASSWORD = "canary-pass-4711"  # noqa: S105


@contextlib.contextmanager
def a_store(url: str) -> Iterator[RuleStore]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def push(store: RuleStore, limit: int = 10) -> int:
    rules = [{"rule_id": "a", "identifier": "ip_address", "rate": f"{limit}/minute"}]
    plan = Editor(store).push(json.dumps(rules).encode(), "rules.json")
    return plan.make(author="tester", at=time.time()).version


def as_user(url: str, name: str, password: str = PASSWORD) -> str:
    return url.replace("://", f"://{name}:{password}@", 1)


# ZooKeeper


def test_znodes_that_anybody_may_write_to_cause_a_warning(
    zookeeper_server: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    url = fresh_url(zookeeper_server)
    with a_store(url) as store:
        push(store)
    live = LiveRules(open_store(url))
    live.close()
    assert [warning.partition(" who")[0] for warning in live.warnings] == ["anyone"]
    assert "may change its rules; set a user and a password" in caplog.text


def test_a_private_znode_is_closed_to_other_users(
    zookeeper_server: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    caplog.set_level(1, "headgate.rules.zookeeper.kazoo")
    url = fresh_url(zookeeper_server)
    with a_store(as_user(url, "ann")) as store:
        push(store)
        assert store.read().documents.keys() == {"a"}
        assert store.warnings == ()
    for stranger in (url, as_user(url, "bob"), as_user(url, "ann", "wrong-password")):
        with (
            a_store(stranger) as store,
            pytest.raises(SourceError, match="check the user, the password and the ACL") as told,
        ):
            store.read()
        assert not told.value.transient
        assert PASSWORD not in str(told.value)
    assert "Sending request" in caplog.text  # kazoo tells everything here,
    assert PASSWORD not in caplog.text  # but not this.


def test_a_readable_znode_can_be_followed_by_all_and_changed_by_its_owner(
    zookeeper_server: ZooKeeper,
) -> None:
    url = fresh_url(zookeeper_server)
    with a_store(as_user(url, "ann") + "?acl=readable") as store:
        push(store)
        live = LiveRules(open_store(url))
        try:
            with (
                a_store(url) as stranger,
                pytest.raises(SourceError, match="a client without a name"),
            ):
                push(stranger, 11)
            version = push(store, 12)
            wait_until(lambda: live.version >= version, "the stranger follows")
            assert live.rules["a"].limits[0].limit == 12
            assert live.warnings == ()
        finally:
            live.close()


def test_an_owner_needs_a_name(zookeeper_server: ZooKeeper) -> None:
    with pytest.raises(SourceError, match="acl=private needs an owner of the rules"):
        open_store(fresh_url(zookeeper_server) + "?acl=private")


@pytest.mark.slow  # A Java process starts.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_zookeeper_with_certificates() -> None:
    """kazoo forgets to close a socket when its handshake fails; that is not what is tested here."""
    with installed(), zookeeper(1, tls=True) as server:
        files = server.certificates
        assert files is not None
        url = fresh_url(server)
        own = f"&cert_file={files.client}&key_file={files.client_key}"
        with a_store(f"{url}?ca_file={files.authority}{own}") as store:
            push(store)
            assert store.read().documents.keys() == {"a"}
        for options in ("", "&tls=yes" + own, f"&ca_file={files.authority}"):
            with (
                a_store(f"{url}?timeout=1{options}") as store,
                pytest.raises(SourceError, match="cannot be reached"),
            ):
                store.read()
    gc.collect()


# etcd


@pytest.mark.slow  # A server dies and comes back.
def test_a_watch_with_a_user_name_comes_back_after_etcd_was_away(guarded_etcd: Etcd) -> None:
    """It needs a token first, and who gives those is away as well."""
    url = fresh_url(guarded_etcd, "?timeout=0.5")
    with a_store(as_user(url, "editor")) as store:
        push(store)
        live = LiveRules(open_store(as_user(url, "node")), recheck_seconds=600)
        try:
            wait_until(lambda: live.stale_seconds == 0, "it listens")
            for limit in (11, 12):
                guarded_etcd.nodes[0].kill()
                client: Any = live._source
                client._client._token = ""  # Its time was over.
                wait_until(lambda: live.problem is not None, "it is away", within_s=20)
                time.sleep(1.0)  # For some tries in vain.
                guarded_etcd.heal()
                wait_until(lambda: live.stale_seconds == 0, "it listens again", within_s=20)
                version = push(store, limit)
                wait_until(lambda version=version: live.version >= version, "it follows")  # type: ignore[misc]
                assert live.rules["a"].limits[0].limit == limit
        finally:
            live.close()


@pytest.fixture(scope="module")
def guarded_etcd() -> Iterator[Etcd]:
    """One etcd that knows users: `editor` may write the rules, `node` may read them, nobody else anything."""
    with installed(), etcd(1) as server:
        node = server.nodes[0]
        node.call("/v3/auth/user/add", {"name": "root", "password": PASSWORD})
        node.call("/v3/auth/role/add", {"name": "root"})
        node.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        for user, kind in (("editor", "READWRITE"), ("node", "READ")):
            node.call("/v3/auth/user/add", {"name": user, "password": PASSWORD})
            node.call("/v3/auth/role/add", {"name": user})
            permission = {"permType": kind, "key": _b64("/"), "range_end": _b64("0")}
            node.call("/v3/auth/role/grant", {"name": user, "perm": permission})
            node.call("/v3/auth/user/grant", {"user": user, "role": user})
        node.call("/v3/auth/enable", {})
        yield server


def test_etcd_users_may_do_what_their_role_says(
    guarded_etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = fresh_url(guarded_etcd)
    with a_store(as_user(url, "editor")) as store:
        push(store)
        live = LiveRules(open_store(as_user(url, "node")))
        try:
            version = push(store, 11)
            wait_until(lambda: live.version >= version, "a node that may only read follows")
        finally:
            live.close()
    with (
        a_store(as_user(url, "node")) as store,
        pytest.raises(SourceError, match="permission denied"),
    ):
        push(store, 12)
    with a_store(url) as store, pytest.raises(SourceError, match=r"refused: .*user name is empty"):
        store.read()
    with (
        a_store(as_user(url, "node", "wrong-password")) as store,
        pytest.raises(
            SourceError, match="authentication failed, invalid user ID or password"
        ) as told,
    ):
        store.read()
    assert "wrong-password" not in str(told.value)
    assert PASSWORD not in caplog.text


def test_a_token_that_etcd_has_forgotten_is_renewed(guarded_etcd: Etcd) -> None:
    """etcd keeps simple tokens in memory, so a restart forgets them as their age would."""
    url = fresh_url(guarded_etcd)
    with a_store(as_user(url, "editor")) as store:
        push(store)
        live = LiveRules(open_store(as_user(url, "node")))
        try:
            wait_until(lambda: live.stale_seconds == 0, "it listens")
            node = guarded_etcd.nodes[0]
            node.kill()
            node.start()
            guarded_etcd.wait_until_whole()
            version = _patiently(store, 11)
            wait_until(lambda: live.version >= version, "the node has a new token too")
            assert live.rules["a"].limits[0].limit == 11
        finally:
            live.close()


def test_etcd_with_certificates(tmp_path: Path) -> None:
    with installed(), etcd(1, tls=True) as server:
        files = server.certificates
        assert files is not None
        url = fresh_url(server)
        own = f"cert_file={files.client}&key_file={files.client_key}"
        with a_store(f"{url}?ca_file={files.authority}&{own}") as store:
            push(store)
            live = LiveRules(open_store(f"{url}?ca_file={files.authority}&{own}"))
            version = push(store, 11)
            wait_until(lambda: live.version >= version, "a node follows")
            live.close()
        for options in ("", "?tls=yes&timeout=0.5", f"?{own}", f"?ca_file={files.authority}"):
            with (
                a_store(url + options) as store,
                pytest.raises(SourceError, match="does not answer"),
            ):
                store.read()
    with pytest.raises(SourceError, match=r"missing\.pem: No such file"):
        open_store(f"{url}?ca_file={tmp_path}/missing.pem")


def test_a_revision_that_etcd_has_compacted_away_is_no_loss(
    etcd_server: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    """The network breaks, rules change, history is compacted: the node is told to read everything again."""
    caplog.set_level(logging.INFO, "headgate.rules.etcd")
    url = fresh_url(etcd_server)
    (node,) = etcd_server.nodes
    told = threading.Event()
    with a_store(url) as editor, Link(node.port) as link:
        push(editor)
        with a_store(url.replace(str(node.port), str(link.port))) as store:
            store.watch(told.set)
            store.read()
            wait_until(lambda: store.in_touch, "it listens")
            link.refuse()
            link.reset()
            wait_until(lambda: not store.in_touch, "it knows that it does not")
            push(editor, 11)
            version = push(editor, 12)
            _compact(node, version)
            link.mend()
            wait_until(lambda: "has compacted revision" in caplog.text, "it hears of it")
            assert told.wait(5)
            assert store.read().version == version
            wait_until(lambda: store.in_touch, "it listens again")
            told.clear()
            push(editor, 13)
            assert told.wait(5)


@pytest.mark.parametrize("scheme", ["zookeeper", "etcd"])
def test_a_password_shows_nowhere(scheme: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    for url in (
        f"{scheme}://ann:{PASSWORD}@localhost:1/rules?timeout=0.1",
        f"{scheme}://ann@localhost:1/rules?timeout=0.1&password_file={secret}",
    ):
        location = parse_location(url)
        assert location.password == PASSWORD
        with a_store(url) as store:
            with pytest.raises(SourceError) as told:
                store.read()
            shown = [repr(location), str(location), str(store), repr(store), str(told.value)]
        assert not [text for text in shown if PASSWORD in text]


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _compact(node: EtcdNode, revision: int) -> None:
    node.call("/v3/kv/compaction", {"revision": str(revision), "physical": True})


def _patiently(store: RuleStore, limit: int) -> int:
    deadline = time.monotonic() + 10
    while True:
        try:
            return push(store, limit)
        except SourceError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # A store that is away may come back.
