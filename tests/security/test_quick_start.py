"""The five commands of docs/howto/security.md, as they are written there."""

from __future__ import annotations

from pathlib import Path

from tests.security.quick_start import QuickStart


def test_five_commands_take_a_tracker_from_nothing_to_tls_and_tokens(tmp_path: Path) -> None:
    start = QuickStart(tmp_path)
    with start.tracker():
        asked = start.run(start.last)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert start.run(start.last.partition("--token-file")[0]).returncode == 1
