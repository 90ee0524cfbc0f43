"""`python -m tracker.web.probe [HOST:PORT]`: whether the server or relay with this metrics address can do its work.

For supervisors that run a command inside the container, such as Docker's HEALTHCHECK: the image has no curl. It needs
nothing but the standard library, and prints what `/readyz` answered. Exit status: 0 ready; 1 not ready, or no answer.

    python -m tracker.web.probe 127.0.0.1:7660
"""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Sequence

_DEFAULT = "127.0.0.1:7660"
_TIMEOUT_S = 4.0  # below the time-outs that supervisors have by default


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask once, by HTTP and then by HTTPS, and return the exit status.

    Args:
        arguments: the metrics address as ``HOST:PORT``, or nothing for the default; None: this process's own.
    """
    given = sys.argv[1:] if arguments is None else arguments
    address = given[0] if given else _DEFAULT
    # The certificate names the server for its clients, not this address; and a probe of this container learns nothing
    # that somebody in between could use.
    unverified = ssl._create_unverified_context()
    error: Exception | None = None
    for connection in (
        http.client.HTTPConnection(address, timeout=_TIMEOUT_S),
        http.client.HTTPSConnection(address, timeout=_TIMEOUT_S, context=unverified),
    ):
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            print(answer.read(1000).decode(errors="replace").strip())
            return 0 if answer.status == 200 else 1
        except (OSError, http.client.HTTPException) as failed:
            error = failed
        finally:
            connection.close()
    print(f"no answer from {address}: {error}; is it the address that --metrics names?", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
