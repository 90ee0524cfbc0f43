"""Requirements on a database: a DB-API 2 connection with transactions, and how its driver takes statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from spark_client.errors import UsageError, check_choice


class Cursor(Protocol):
    """Required part of a DB-API 2 cursor."""

    def execute(self, sql: str, parameters: Sequence[Any], /) -> Any: ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any: ...

    def fetchone(self) -> Any: ...


class Connection(Protocol):
    """Required part of a DB-API 2 connection."""

    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...

    def rollback(self) -> Any: ...

    def close(self) -> Any: ...


def check_transactions(connection: Connection) -> None:
    """Refuse a connection that commits by itself."""
    if getattr(connection, "autocommit", False) is True:
        raise UsageError(
            "the connection commits by itself, so half an epoch could be found: make it with autocommit=False"
        )


def name_in(placeholder: str, name: str) -> str:
    """Return a column's name in a statement: where parameters are written with a per cent sign, one in a name is
    doubled.

    >>> name_in("%s", '100%'), name_in("?", 'a"b')
    ('"100%%"', '"a""b"')
    """
    return in_statement(placeholder, '"' + name.replace('"', '""') + '"')


def in_statement(placeholder: str, sql: str) -> str:
    """Return a part of a statement as drivers take it that look for parameters in it.

    >>> in_statement("%s", '"100%"'), in_statement("?", '"100%"')
    ('"100%%"', '"100%"')
    """
    return sql.replace("%", "%%") if placeholder.startswith("%") else sql


def check_placeholder(placeholder: str) -> None:
    """Refuse what no statement of ours can have in place of a parameter; ``%b`` and ``%t`` are psycopg's."""
    why = ", as the driver takes parameters, one after the other; most take '%s' or '?'"
    check_choice("placeholder", placeholder, "%s", "?", "%b", "%t", why=why)
