"""`tracker context`: named servers, so that nobody has to remember addresses and files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final, Literal

import typer

from tracker.cli import configuration
from tracker.cli.configuration import Context, complete_contexts
from tracker.cli.declarations import Group, WrongUsageError, command, is_given, new_commands
from tracker.cli.output import Column, Form, print_done, print_json, print_line, print_pairs, print_rows

commands = new_commands()
_group = new_commands()


@_group.callback(cls=Group, epilog="example: tracker context set production --server tracker:7654 --tls-ca ca.pem")
def context() -> None:
    """Name servers, and choose one of them for all commands.

    They are kept in $XDG_CONFIG_HOME/tracker/config.toml ($TRACKER_CONFIG names another file), never with a token. A
    command uses the context that `--context NAME` names, or else the current one; `--server` or TRACKER_SERVER, given
    without `--context`, goes before the current one.
    """


commands.add_typer(_group, name="context")


_Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_contexts, help="the context's name")]


@command(_group, "list")
def list_contexts(form: Form) -> int:
    """List the contexts. The current one has a star."""
    found = configuration.read()
    if form is Form.JSON:
        print_json(
            {"current": found.current or None, "contexts": {n: asdict(c) for n, c in found.contexts.items()}}, indent=2
        )
        return 0
    if not found.contexts:
        print_line(f"no contexts in {found.path}; `tracker context set NAME --server HOST:PORT` adds one")
        return 0
    columns: list[Column[tuple[str, Context]]] = [
        Column("CURRENT", lambda each: "*" if each[0] == found.current else ""),
        Column("NAME", lambda each: each[0], style=lambda each: "bold" if each[0] == found.current else ""),
        Column("SERVER", lambda each: each[1].server),
        Column("SHARDED", lambda each: each[1].sharded),
        Column("TLS", lambda each: each[1].tls_ca and ("mutual" if each[1].tls_cert else "yes")),
        Column("TOKEN FILE", lambda each: each[1].token_file),
        Column("TLS CA", lambda each: each[1].tls_ca, wide=True),
        Column("TLS CERT", lambda each: each[1].tls_cert, wide=True),
        Column("TLS KEY", lambda each: each[1].tls_key, wide=True),
    ]
    print_rows(columns, found.contexts.items(), form)
    return 0


@command(_group, "show")
def show_context(
    form: Form,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", autocompletion=complete_contexts, help="the context's name (default: the current one)"
        ),
    ] = None,
) -> int:
    """Show one context, and the file that has it."""
    found = configuration.read()
    asked = name or found.current
    if not asked:
        raise WrongUsageError(f"{found.path} has no current context; `tracker context use NAME` chooses one")
    chosen = found.get(asked)
    if form is Form.JSON:
        print_json(
            {"name": asked, "current": asked == found.current, "file": str(found.path), **asdict(chosen)}, indent=2
        )
    else:
        pairs = [(key, getattr(chosen, key.replace("-", "_"))) for key in configuration.KEYS]
        print_pairs([("name", asked), *pairs, ("file", found.path)])
    return 0


@command(_group, "use")
def use_context(form: Form, name: _Name) -> int:
    """Make a context the current one."""
    configuration.read().get(name)
    configuration.use(name)
    return print_done(form, name, "current")


_FILE: Final = "FILE"


@command(_group, "set", "tracker context set production --server tracker:7654 --tls-ca ca.pem --token-file token")
def set_context(
    context: typer.Context,
    form: Form,
    name: _Name,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,…", help="the address of the tracker, or those of several")
    ] = None,
    sharded: Annotated[
        Literal["none", "scope", "global", ""] | None,
        typer.Option(metavar="ORDERING", help="each job is shared by all of these servers, and has this ordering"),
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(metavar=_FILE, help="the authorities of the tracker's certificate (PEM), or `system`"),
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar=_FILE, help="this client's certificate (PEM)")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar=_FILE, help="its key (PEM)")] = None,
    token_file: Annotated[
        str | None,
        typer.Option(metavar=_FILE, help="the file that holds the token; the token itself is never kept here"),
    ] = None,
) -> int:
    """Add a context, or change what is given of one; an empty value ('') removes it. The first one becomes current.

    Relative files are relative to the file of contexts.
    """
    given = {
        "server": server,
        "sharded": sharded,
        "tls-ca": tls_ca,
        "tls-cert": tls_cert,
        "tls-key": tls_key,
        "token-file": token_file,
    }
    found = configuration.read()
    if name not in found.contexts and not server:
        before = (
            " (it stands before the command; write it after the name)"
            if is_given(context.find_root(), "server")
            else ""
        )
        raise WrongUsageError(f"a new context needs --server HOST:PORT{before}")
    if server == "":
        raise WrongUsageError("a context needs a server; `tracker context remove` removes the context")
    configuration.write(name, {key: value or None for key, value in given.items() if value is not None})
    return print_done(form, name, "set")


@command(_group, "remove")
def remove_context(form: Form, name: _Name) -> int:
    """Remove a context. If it was the current one, there is none until another is chosen."""
    configuration.read().get(name)
    configuration.remove(name)
    return print_done(form, name, "removed")
