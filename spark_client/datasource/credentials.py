"""What the source ``tracker`` shows to a tracker: its options name files, which its processes read.

Spark may show the options of a source in plans, on its pages and in logs. So an option that would be a secret is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_client.errors import UsageError
from tracker.client import Credentials
from tracker.client.credentials import TOKEN_VARIABLE

#: The options, by the field of `Credentials`.
OPTIONS: Final = {"ca": "tls_ca", "cert": "tls_cert", "key": "tls_key", "token_file": "token_file"}
_SECRETS: Final = ("token", "password", "secret")


def options_of(credentials: Credentials) -> dict[str, str]:
    """Return the options of the source for a client's credentials.

    >>> options_of(Credentials(ca="/etc/ca.pem"))
    {'tls_ca': '/etc/ca.pem'}
    """
    files = {option: getattr(credentials, name) for name, option in OPTIONS.items()}
    return {option: file for option, file in files.items() if file}


def credentials_of(options: Mapping[str, str]) -> Credentials:
    """Return the credentials that options name; those of the environment, if they name none.

    Raises:
        UsageError: `tls_cert` or `tls_key` lacks the other.
    """
    files = {name: options[option] for name, option in OPTIONS.items() if options.get(option)}
    if not files:
        return Credentials.from_environment()
    try:
        return Credentials(**files, token_variable=None if "token_file" in files else TOKEN_VARIABLE)
    except ValueError as wrong:
        raise UsageError(f'format("tracker"): {wrong}') from wrong


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Refuse an option that would hold a secret, without showing it.

    Raises:
        UsageError: there is one.
    """
    for key in options:
        if key.lower() in _SECRETS:
            raise UsageError(
                f'format("tracker"): {key!r} may be shown in Spark\'s plans and logs; write the token to a file '
                'that the executors have, and give .option("token_file", …)'
            )
