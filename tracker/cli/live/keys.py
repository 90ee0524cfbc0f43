"""Keys that are pressed on a terminal, one by one: read without waiting for Enter, and not shown."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LONGEST: Final = 64  # bytes that are read together: one key, or some that are pressed fast
_NAMES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}


@contextmanager
def raw_keys() -> Iterator[int]:
    """Give stdin's descriptor, from which keys can be read at once as long as the context is open.

    Ctrl-C still interrupts. Ctrl-Z does nothing, since it would leave the terminal as it is here.
    """
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin, termios.TCSADRAIN)
    changed = termios.tcgetattr(stdin)
    changed[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(stdin, termios.TCSADRAIN, changed)
    try:
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def read_keys(descriptor: int) -> list[str]:
    """Read what was pressed: letters, ``up``, ``down``, ``home``, ``end``; other keys are left out.

    Raises:
        EOFError: the terminal is gone.
    """
    try:
        data = os.read(descriptor, _LONGEST)
    except OSError:
        data = b""
    if not data:
        raise EOFError
    return keys_in(data)


def keys_in(data: bytes) -> list[str]:
    r"""Return the keys for which a terminal sends some bytes.

    >>> keys_in(b"o\x1b[Bq\x1b[15~\x1b[A")
    ['o', 'down', 'q', 'up']
    """
    keys = []
    while data:
        length = _length(data)
        key, data = data[:length], data[length:]
        if key in _NAMES:
            keys.append(_NAMES[key])
        elif length == 1 and key.isalpha():
            keys.append(key.decode())
    return keys


def _length(data: bytes) -> int:
    """Return how many bytes the first key has: sequences of escape end with a letter or a tilde."""
    if data[:1] != b"\x1b" or data[1:2] not in (b"[", b"O"):
        return 1
    for place, byte in enumerate(data[2:], 2):
        if 0x40 <= byte <= 0x7E:
            return place + 1
    return len(data)
