"""Webhooks: a request by HTTP for each event, signed, so that the receiver can check who has sent it.

Source of the signature: the specification of Standard Webhooks 1.0 (scheme v1, HMAC-SHA256).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from pathlib import Path

from .exchange import ExchangeError, Exchanger
from .rules import Webhook

_PREFIX = "whsec_"  # of a secret, in the form in which its makers show it


class DeliveryError(Exception):
    """An event was not delivered; it is to be tried again.

    Args:
        pause: seconds that the receiver has asked for; 0: none.
    """

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class WebhookSender:
    """Sender of messages to one receiver."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        # A redirect would take the message and its signature to another receiver, so it counts as a failure.
        self._exchanger = Exchanger(webhook.url, webhook.timeout)

    def send(self, identity: str, message: bytes) -> None:
        """Send one message; the receiver has it when this returns.

        Args:
            identity: the same for each attempt, so that the receiver can drop a second copy.
            message: a CloudEvent in JSON.

        Raises:
            DeliveryError: no answer with a status of 200 to 299, or the secret cannot be read.
        """
        now = int(time.time())
        headers = {
            "content-type": "application/cloudevents+json",
            "user-agent": "substream-tracker",
            "webhook-id": identity,
            "webhook-timestamp": str(now),
        }
        if self._webhook.secret_file is not None:
            # Read each time: a secret that was replaced counts from the next attempt on.
            headers["webhook-signature"] = signature(secret_in(self._webhook.secret_file), identity, now, message)
        try:
            answer = self._exchanger.post(message, headers)
        except ExchangeError as error:
            raise DeliveryError(f"{self._webhook.url}: {error}") from error
        if not 200 <= answer.status < 300:
            pause = answer.headers.get("retry-after", "")
            raise DeliveryError(
                f"{self._webhook.url} answered {answer.status} {answer.reason}".rstrip(),
                float(pause) if pause.isdecimal() else 0.0,
            )

    def close(self) -> None:
        """Close the connection."""
        self._exchanger.close()


def signature(secret: bytes, identity: str, at: int, message: bytes) -> str:
    """Return the signature of a message.

    Args:
        secret: what sender and receiver know.
        at: when it is sent, in seconds since 1970.

    >>> signature(b"secret", "msg_1", 1614265330, b"{}")
    'v1,3/iD+UC/cFPl3PtRMPUcvEULlwun6jyVUEMvdX3yW5g='
    """
    signed = b".".join((identity.encode(), str(at).encode(), message))
    return f"v1,{base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()}"


def secret_in(file: Path) -> bytes:
    """Read a secret: base64, with the prefix ``whsec_`` or without.

    Raises:
        DeliveryError: it cannot be read.
    """
    try:
        text = file.read_text(encoding="ascii").strip().removeprefix(_PREFIX)
        secret = base64.b64decode(text, validate=True)
    except (OSError, UnicodeDecodeError, binascii.Error) as error:
        raise DeliveryError(f"the secret in {file} cannot be used: {error}") from error
    if not secret:
        raise DeliveryError(f"the secret in {file} is empty; `openssl rand -base64 32` makes one")
    return secret
