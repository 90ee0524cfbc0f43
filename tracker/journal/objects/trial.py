"""Whether a store keeps the condition on which the whole journal rests."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from ..interface import JournalError
from .store import NoAnswerError, Objects

_AT_ONCE: Final = 8  # writers
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.2


def try_conditions(objects: Objects, where: str) -> None:
    """Try whether a store creates an object for one of several writers only, at once and one after the other.

    Args:
        objects: the store.
        where: its address, for messages.

    Raises:
        JournalError: it does not.
        NoAnswerError, RefusedError: the store cannot be used.
    """
    for attempt in range(_ATTEMPTS):
        answers, problem = _race(objects, f"trial/{secrets.token_hex(8)}")
        if sum(answers) > 1:
            raise JournalError(
                f"{where} has created one object {sum(answers)} times: it does not keep the condition of a write "
                "(If-None-Match), so two trackers could write one log; use a store that does"
            )
        if len(answers) > 1:
            return
        if attempt < _ATTEMPTS - 1:
            time.sleep(_PAUSE_S * 2**attempt)
    raise problem or NoAnswerError("there was no answer")


def _race(objects: Objects, name: str) -> tuple[list[bool], NoAnswerError | None]:
    """Create one object several times; return the answers, and why there were not more of them."""
    problems: list[NoAnswerError] = []

    def create(place: int) -> list[bool]:
        try:
            return [objects.create(name, b"%d" % place)]
        except NoAnswerError as error:
            problems.append(error)
            return []

    with ThreadPoolExecutor(_AT_ONCE) as writers:
        answers = [answer for some in writers.map(create, range(_AT_ONCE)) for answer in some]
    answers += create(_AT_ONCE)
    with suppress(NoAnswerError):
        objects.delete([name])
    return answers, problems[0] if problems else None
