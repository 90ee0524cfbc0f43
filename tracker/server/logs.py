"""Logs for people and programs alike: each entry is a line of ``key=value`` pairs on stderr."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

_PLAIN = re.compile(r"[^\s\"=\\]+")
_OWN = frozenset(vars(logging.makeLogRecord({})))


class KeyValueFormatter(logging.Formatter):
    """Formatter of a record as ``ts=… level=… logger=… msg=…``, followed by its `extra`.

    >>> record = logging.makeLogRecord({"levelname": "INFO", "name": "tracker", "msg": "ready", "port": 7654})
    >>> KeyValueFormatter().format(record).partition(" ")[2]
    'level=info logger=tracker msg=ready port=7654'
    """

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs: dict[str, object] = {
            "ts": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        pairs.update((key, value) for key, value in vars(record).items() if key not in _OWN and key != "message")
        if record.exc_info:
            pairs["error"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_value(value)}" for key, value in pairs.items())


def _value(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    # Characters that a terminal would act on are escaped as in JSON: escape sequences, and marks that reverse the text.
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in quoted)


def log_to_stderr(level: str) -> None:
    """Send this process's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
