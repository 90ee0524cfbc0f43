"""The five commands of docs/security.md, as they are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from examples.services.processes import free_port

_PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_five_commands_take_a_tracker_from_nothing_to_tls_and_tokens(tmp_path: Path) -> None:
    block = re.search(r"```sh\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert block is not None
    port = str(free_port())
    commands = [line for line in block[1].replace("\\\n", " ").replace("7654", port).splitlines() if line]
    assert len(commands) == 5
    (tmp_path / "tracker").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tracker.cli.main "$@"\n')
    (tmp_path / "tracker").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRACKER_CONFIG": "/nonexistent"}
    make, serve, ask = commands[:3], commands[3], commands[4]
    for command in make:
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True, capture_output=True)
    server = subprocess.Popen(
        f"exec {serve.replace('0.0.0.0', '127.0.0.1')} --journal memory",
        shell=True, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("listening on ")
        run = subprocess.run(
            ask, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stderr) == (0, "")
        without = ask.partition("--token-file")[0]
        run = subprocess.run(
            without, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 1
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()
