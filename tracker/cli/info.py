"""`tracker info`: the server that answers, and its limits."""

from __future__ import annotations

from dataclasses import replace

from tracker.cli.connecting import Connection
from tracker.cli.declaring import command, new_commands
from tracker.cli.forms import Form
from tracker.cli.output import print_json, print_line, print_pairs, print_table

commands = new_commands()


@command(commands, "info")
def info(at: Connection, form: Form) -> int:
    """Show the server's version, its journal and its limits. Of several servers, the first by name."""
    with at.single_client() as client:
        found = client.server_info()
    if form is Form.JSON:
        print_json(replace(found, limits=dict(sorted(found.limits.items()))), indent=2)
        return 0
    print_pairs([("server", at.server), ("version", found.version), ("journal", found.journal)])
    print_line()
    print_table(["LIMIT", "VALUE"], sorted(found.limits.items()))
    return 0
