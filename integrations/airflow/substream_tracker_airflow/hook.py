"""The connection type `substream_tracker`: where a tracker is, and what a client shows there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk import BaseHook, Connection

from tracker.client import Credentials, TrackerClient

DEFAULT_CONNECTION: Final = "substream_tracker_default"
PORT: Final = 7654
#: The extras of a connection, which are files on the machines of the workers and the triggerer.
FILES: Final = ("ca", "cert", "key", "token_file")


class SubstreamTrackerHook(BaseHook):
    """Hook that makes clients of the tracker that a connection names.

    Its host and port are the tracker's; a host such as ``a:7654+b:7654`` names one with a standby. The extras ``ca``,
    ``cert``, ``key`` and ``token_file`` name files on the machine of the worker or the triggerer.

    Args:
        conn_id: the connection.

    >>> client = SubstreamTrackerHook("tracker").get_conn()
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "substream_tracker"
    hook_name = "Substream tracker"

    def __init__(self, conn_id: str = DEFAULT_CONNECTION) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> TrackerClient:
        """Return a client. Close it, or use it as a context manager."""
        return client_of(self.get_connection(self.conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Test whether the tracker answers, for the page of connections."""
        try:
            with self.get_conn() as client:
                found = client.server_info()
        except Exception as error:  # the page shows it, whatever it is
            return False, str(error)
        return True, f"a tracker of version {found.version} answers"


async def connected(conn_id: str) -> TrackerClient:
    """Return a client in an event loop, which looking a connection up in the usual way would block."""
    return client_of(await SubstreamTrackerHook.aget_connection(conn_id))


def client_of(connection: Connection) -> TrackerClient:
    """Return a client of the tracker that a connection names.

    Raises:
        ValueError: the connection has no host, has a password, or an extra of another name.
    """
    name, extras = connection.conn_id, connection.extra_dejson
    if not connection.host:
        raise ValueError(f"connection {name!r} has no host: give the tracker's, and its port if it is not {PORT}")
    if connection.password:
        raise ValueError(
            f"connection {name!r} has a password, which a tracker does not take: put the token into a file on the "
            'machines of the workers and the triggerer, and name it in the extras: {"token_file": "/run/secrets/token"}'
        )
    return TrackerClient(_address(connection.host, connection.port), credentials=_credentials(name, extras))


def _address(host: str, port: int | None) -> str:
    """Return the address to call.

    >>> _address("tracker", None), _address("tracker", 7000), _address("a:7654+b:7654", None)
    ('tracker:7654', 'tracker:7000', 'a:7654+b:7654')
    """
    if port is None and ":" in host:
        return host
    return f"{host}:{port or PORT}"


def _credentials(name: str, extras: Mapping[str, Any]) -> Credentials | None:
    """Return the client's credentials; None: those that the environment names."""
    if unknown := sorted(extras.keys() - set(FILES)):
        raise ValueError(f"connection {name!r} has the extra {unknown[0]!r}, which is none of {', '.join(FILES)}")
    given = {key: extras[key] for key in FILES if extras.get(key)}
    return Credentials(**given) if given else None
