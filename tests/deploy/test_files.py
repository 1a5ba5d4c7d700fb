"""Everything in `deploy/`, read by what knows the formats: schemas, systemd, and what a container file must have."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from headgate.service.settings import SETTINGS
from tests.deploy.dockerfile import DEPLOY, read
from tests.servers.fixtures import installed
from tests.servers.process import NotInstalledError

if TYPE_CHECKING:
    from pathlib import Path

ROOT = DEPLOY.parent
COMPOSE_FILES = sorted(DEPLOY.glob("*/compose.yaml"))
MANIFESTS = [
    (path.name, manifest)
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
]
RESOURCES = [one for name, one in MANIFESTS if name != "kustomization.yaml"]
KUBERNETES = ("1.29", "1.37")
"""The oldest and the newest that the manifests are validated against."""
UNIT = DEPLOY / "systemd" / "headgate.service"


def names_of(path: Path) -> str:
    return path.relative_to(DEPLOY).as_posix()


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "manifest", RESOURCES, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}"
)
def test_manifests_are_valid(manifest: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_a_manifest_with_a_mistake_is_found() -> None:
    deployment = next(one for one in RESOURCES if one["kind"] == "Deployment")
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


def test_all_manifests_are_applied_together() -> None:
    (applied,) = (one["resources"] for name, one in MANIFESTS if name == "kustomization.yaml")
    assert sorted(applied) == sorted({name for name, _ in MANIFESTS} - {"kustomization.yaml"})


@pytest.mark.slow
def test_compose_files_are_valid() -> None:
    """The checker takes a second to start."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema, *COMPOSE_FILES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=names_of)
def test_compose_files_publish_on_this_machine_only_and_keep_stores_inside(path: Path) -> None:
    file = yaml.safe_load(path.read_text())
    for name, service in file["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        if name.startswith(("redis", "etcd")):
            assert service["networks"] == ["store"]
            assert "ports" not in service
    assert file["networks"]["store"]["internal"]


def test_every_variable_in_the_files_is_a_setting() -> None:
    known = {f"HEADGATE_{name.upper()}" for name in SETTINGS} | {"HEADGATE_STATE_DIR"}
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and path.parent.name not in ("grafana", "prometheus"):
            assert set(re.findall(r"\bHEADGATE_[A-Z_]+", path.read_text())) <= known, path.name


def test_the_image_runs_as_an_unprivileged_user_and_has_no_compiler() -> None:
    build, image = read(DEPLOY / "Dockerfile")
    assert image.last("USER") == "10001:10001"
    assert not any("gcc" in rest for rest in image.all("RUN"))
    assert any("gcc" in rest for rest in build.all("RUN"))
    assert image.command == ["headgate", "serve"]
    assert read(DEPLOY / "etcd" / "Dockerfile")[-1].last("USER") == "10002:10002"


def test_what_the_image_copies_is_there_and_is_sent_to_the_builder() -> None:
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    build, _ = read(DEPLOY / "Dockerfile")
    copied = [source for rest in build.all("COPY") for source in rest.split()[:-1]]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, rule) for rule in sent), source


def systemd_analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        raise NotInstalledError("there is no systemd-analyze: make servers")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def test_the_unit_is_valid(tmp_path: Path) -> None:
    here = tmp_path / "headgate.service"
    text = UNIT.read_text()
    assert "ExecStart=/opt/headgate/bin/headgate serve" in text
    here.write_text(text.replace("/opt/headgate/bin/headgate", sys.executable))
    with installed():
        verified = systemd_analyze("verify", "--man=no", here)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_the_unit_is_hardened() -> None:
    with installed():
        judged = systemd_analyze("security", "--offline=yes", "--threshold=15", "--no-pager", UNIT)
    assert judged.returncode == 0, judged.stdout.splitlines()[-1]
