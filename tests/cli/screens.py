"""A terminal on which the command `tracker` runs, as a person sees it and types on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

import pyte

from tests.cli.shell import Shell

_PATIENCE_S = 60.0  # a busy machine is no fault
_COLOURS = {"brown": "yellow"}  # as pyte names them, and as everybody does
_OTHER_SCREEN, _SAME_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
_HIDDEN, _VISIBLE = b"\x1b[?25l", b"\x1b[?25h"  # the cursor


#: Makes a terminal that of the session, so that Ctrl-C and a new size are told to the command, and becomes the command.
#: A process of its own does this: code between fork and exec would run gRPC's handlers for forks, which may block.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)
os.close(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Terminal:
    """A command on a terminal of a size. As a context it ends the command, whatever happens.

    Args:
        shell: whose environment the command gets.
        arguments: the command line without the program's name.
        columns: the terminal's width.
        lines: its height.
        program: the module that is run.
        only: the streams that are the terminal; the others are pipes.
        variables: what the environment has besides.
    """

    def __init__(
        self,
        shell: Shell,
        *arguments: str,
        columns: int = 100,
        lines: int = 24,
        program: str = "tracker.cli.main",
        only: Sequence[str] = ("stdin", "stdout", "stderr"),
        **variables: str,
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""  #: everything that the terminal was sent
        self.resize(columns, lines)
        self._modes = termios.tcgetattr(self._theirs)
        kept = {name: value for name, value in shell.environment.items() if name not in ("NO_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, str(self._theirs), sys.executable, "-m", program, *arguments],
            env={**kept, "TERM": "xterm-256color", **variables},
            **{name: self._theirs if name in only else subprocess.PIPE for name in ("stdin", "stdout", "stderr")},  # type: ignore[call-overload]
            start_new_session=True,
            pass_fds=[self._theirs],
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal wider, narrower, higher or lower; the command is notified in the usual way."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)

    @property
    def text(self) -> str:
        """The text on the screen, without empty lines at its end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def colours(self, text: str) -> set[str]:
        """Return the colours in which a text of one line stands on the screen."""
        for number, line in enumerate(self._screen.display):
            if (start := line.find(text)) >= 0:
                row = self._screen.buffer[number]
                return {_COLOURS.get(row[place].fg, row[place].fg) for place in range(start, start + len(text))}
        raise AssertionError(f"{text!r} is not on the screen:\n{self.text}")

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self._ours, keys.encode())

    def await_screen(self, is_right: Callable[[str], bool]) -> str:
        """Return the screen's text as soon as it is right."""
        until = time.monotonic() + _PATIENCE_S
        while not is_right(self.text):
            assert time.monotonic() < until, f"the screen has never been right:\n{self.text}"
            self._read(0.1)
        return self.text

    def finish(self) -> int:
        """Read until the command ends, and return its exit status."""
        until = time.monotonic() + _PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < until, f"the command does not end:\n{self.text}"
            self._read(0.1)
        while self._read(0.0):
            pass
        return self.process.returncode

    def finish_and_read_stdout(self) -> bytes:
        """Read a stdout that is a pipe, and the terminal, until the command ends well. Return the pipe's content."""
        parts: list[bytes] = []
        stdout = self.process.stdout
        if stdout is not None:
            reading = threading.Thread(target=lambda: parts.append(stdout.read()))
            reading.start()
        assert self.finish() == 0
        if stdout is not None:
            reading.join()
        return b"".join(parts)

    def plain_lines(self) -> list[str]:
        """Return the lines that the terminal was sent, however long, without colours and styles."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.written.decode()).splitlines()

    def is_as_before(self) -> bool:
        """Return whether the terminal is as it was before the command: its modes, its screen, its cursor."""
        back = self.written.rfind(_SAME_SCREEN) >= self.written.rfind(_OTHER_SCREEN)
        visible = self.written.rfind(_VISIBLE) >= self.written.rfind(_HIDDEN)
        return back and visible and termios.tcgetattr(self._theirs) == self._modes

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if ready:
            with suppress(OSError):
                part = os.read(self._ours, 1 << 16)
                self.written += part
                self._stream.feed(part)
        return bool(ready)
