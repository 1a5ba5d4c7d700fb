"""The manifests' container, run with its arguments and variables, and probed as a kubelet would."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from headgate import ConfigError
from headgate.engines.etcd.options import parse_url
from headgate.service.security.tokens import read_tokens
from tests.deploy.asking import answers, ask
from tests.deploy.composed import HEADGATE, SERVES_ON
from tests.deploy.dockerfile import DEPLOY
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, free_ports, wait_until
from tests.service.running import Service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import RedisServer


def manifest(file: str, kind: str, name: str = "headgate") -> dict[str, Any]:
    """One of them."""
    found: dict[str, Any] = next(
        one
        for one in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text())
        if (one["kind"], one["metadata"]["name"]) == (kind, name)
    )
    return found


POD = manifest("deployment.yaml", "Deployment")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SETTINGS = manifest("config.yaml", "ConfigMap")["data"]
SECRET = manifest("secret.yaml", "Secret")["stringData"]


def variables(folder: Path, secret: dict[str, str]) -> dict[str, str]:
    """What the kubelet sets, with files and folders of ours in the place of those that are mounted."""
    found = {**HEADGATE.environment, **SETTINGS}
    del found["PATH"]
    for one in CONTAINER["env"]:
        source = one["valueFrom"]
        found[one["name"]] = (
            secret[source["secretKeyRef"]["key"]]
            if "secretKeyRef" in source
            else source["fieldRef"]["fieldPath"]
        )
    mounts = {mount["mountPath"]: folder / mount["name"] for mount in CONTAINER["volumeMounts"]}
    for own in mounts.values():
        own.mkdir(exist_ok=True)
    for name, value in found.items():
        path = next((path for path in mounts if f"{value}/".startswith(f"{path}/")), None)
        if path is not None:
            found[name] = f"{mounts[path]}{value.removeprefix(path)}"
    rules = manifest("config.yaml", "ConfigMap", "headgate-rules")["data"]
    for name, text in rules.items():
        (folder / "rules" / name).write_text(text)
    return found


def pod(folder: Path, secret: dict[str, str], **changes: str) -> Service:
    """The container as a process; its port is a free one."""
    (port,) = free_ports(1)
    arguments = [str(port) if word == SERVES_ON else word for word in CONTAINER["args"]]
    assert arguments != CONTAINER["args"]
    made = Service(
        [sys.executable, "-m", "headgate", *arguments],
        folder=folder,
        environment={**variables(folder, secret), **changes},
        ready=lambda: answers(HOST, port, CONTAINER["startupProbe"]["httpGet"]["path"]),
        start_within_s=30.0,
    )
    made.port = port
    return made


def hashed_token() -> str:
    """As the page says."""
    command = ["token", "create", "ann", "--role", "admin", "--inline"]
    made = subprocess.run(
        [sys.executable, "-m", "headgate", *command], capture_output=True, text=True, check=True
    )
    return made.stderr.rpartition("'tokens': ")[2].strip()


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_a_pod_serves_is_probed_and_leaves_in_time(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    assert SECRET["engine"].startswith("redis://")
    secret = {"engine": redis_server.url, "tokens": hashed_token()}
    running = pod(tmp_path, secret, HEADGATE_DRAIN_DELAY="2")
    with running:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert CONTAINER[probe]["httpGet"]["port"] == CONTAINER["ports"][0]["name"] == "http"
            assert answers(HOST, running.port, CONTAINER[probe]["httpGet"]["path"])
        status, answer = ask(
            HOST, running.port, "/decide", {"method": "GET", "path": "/", "ip": "198.51.100.7"}
        )
        assert status == 200
        assert "every-client" in answer

        running.interrupt()
        ready = CONTAINER["readinessProbe"]["httpGet"]["path"]
        wait_until(lambda: ask(HOST, running.port, ready)[0] == 503, "it says that it leaves")
        assert ask(HOST, running.port, "/check", {"key": "late"})[0] == 200
        assert running.wait(30) == 0


def test_a_pod_without_a_token_of_its_own_does_not_start() -> None:
    with pytest.raises(ConfigError, match="the token 'ann' has no hash"):
        read_tokens(SECRET["tokens"])


def test_a_pod_has_time_to_leave() -> None:
    delay = float(SETTINGS["HEADGATE_DRAIN_DELAY"])
    probe = CONTAINER["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < delay
    least = delay + float(SETTINGS["HEADGATE_DRAIN_TIMEOUT"])
    assert least < POD["terminationGracePeriodSeconds"]


def test_a_pod_may_do_nothing_but_serve() -> None:
    allowed = CONTAINER["securityContext"]
    assert allowed["readOnlyRootFilesystem"]
    assert not allowed["allowPrivilegeEscalation"]
    assert POD["securityContext"]["runAsUser"] == int(HEADGATE.last("USER").split(":")[0])
    assert POD["automountServiceAccountToken"] is False


def test_the_page_s_variables_for_etcd_name_the_pod() -> None:
    page = (DEPLOY.parent / "docs" / "how-to" / "kubernetes.md").read_text("utf-8")
    (block,) = (
        text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "etcd:" in text
    )
    env = {one["name"]: one.get("value", "") for one in yaml.safe_load(block)["env"]}
    names = list(env)
    assert names.index("POD_IP") < names.index("HEADGATE_ENGINE"), "only what is above is filled in"
    options = parse_url(env["HEADGATE_ENGINE"].replace("$(POD_IP)", "10.0.0.7"))
    assert options.listen == f"10.0.0.7:{env['HEADGATE_RESP_PORT']}"
    assert len(options.hosts) == 3
