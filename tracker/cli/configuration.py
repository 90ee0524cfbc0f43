"""The file of named servers, `config.toml`: read, checked, and written so that comments stay.

    current = "production"

    [contexts.production]
    server = "tracker-{0..2}.tracker:7654"
    tls-ca = "ca.pem"
    token-file = "~/.secrets/tracker"

It holds no secrets: certificates and tokens are named by their files. A relative path is relative to this file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, cast, get_args

from tracker.cli.declarations import WrongUsageError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

#: The variable that names another file.
VARIABLE: Final = "TRACKER_CONFIG"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
Ordering: TypeAlias = Literal["none", "scope", "global"]
_SECRETS: Final = ("token", "password", "secret")


@dataclass(frozen=True)
class Context:
    """A named server.

    Args:
        server: its address, or those of several trackers, as `tracker.client.servers.names` takes them.
        sharded: the ordering of the jobs, if all of these servers share each job.
        tls_ca: the file of the authorities of the server's certificate, or ``system``.
        tls_cert: the file of this client's certificate.
        tls_key: the file of its key.
        token_file: the file that holds the token.
    """

    server: str = ""
    sharded: Ordering | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None


#: The keys of a context in the file.
KEYS: Final = tuple(each.name.replace("_", "-") for each in fields(Context))
#: Those that name files of credentials, as options of commands.
CREDENTIALS: Final = ("tls_ca", "tls_cert", "tls_key", "token_file")
_FILES: Final = tuple(name.replace("_", "-") for name in CREDENTIALS)


@dataclass(frozen=True)
class Configuration:
    """The file as it was read.

    Args:
        current: the context that is used unless another is asked for; empty: none.
        contexts: by name, in the order of the file.
    """

    path: Path
    current: str
    contexts: Mapping[str, Context]

    def get(self, name: str) -> Context:
        """Return a context.

        Raises:
            WrongUsageError: there is none of this name.
        """
        if name in self.contexts:
            return self.contexts[name]
        known = f"there are {', '.join(self.contexts)}" if self.contexts else "there is none yet"
        raise WrongUsageError(
            f"{self.path} has no context {name!r}, {known}; `tracker context set {name} --server HOST:PORT` adds it"
        )


def path() -> Path:
    """Return where the file is: `$TRACKER_CONFIG`, or `tracker/config.toml` in the user's directory for such files."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "tracker" / "config.toml"


def read() -> Configuration:
    """Read the file; if there is none, no context is known.

    Raises:
        WrongUsageError: the file cannot be read, or something is wrong in it; the message names the line.
    """
    file = path()
    text = _text(file)
    if not text.strip():
        return Configuration(file, "", {})
    document = _parse(file, text)
    check = _Checks(file, text)
    check.keys(document, ("current", "contexts"), "")
    contexts = document.get("contexts", {})
    if not isinstance(contexts, Mapping):
        check.fail("contexts must be a table: [contexts.NAME]", "", "contexts")
    found = {name: check.context(name, values) for name, values in contexts.items()}
    current = document.get("current", "")
    if not isinstance(current, str) or (current and current not in found):
        check.fail(f"there is no context {current!r}; known are: {', '.join(found) or 'none'}", "", "current")
    return Configuration(file, str(current), found)


def complete_contexts(incomplete: str) -> list[str]:
    """Return the names of contexts that begin so, for a shell; none if the file is wrong."""
    try:
        return [name for name in read().contexts if name.startswith(incomplete)]
    except WrongUsageError:
        return []


def write(name: str, values: Mapping[str, str | None]) -> None:
    """Add a context, or changes one. Other lines and comments stay as they are.

    Args:
        values: by key of the file; None: the key is removed.
    """
    if not _NAME.fullmatch(name):
        raise WrongUsageError(f"{name!r} cannot be a context's name: use letters, digits, '.', '_' and '-', at most 63")
    document = _document()
    # tomlkit is loaded here, since most commands read no such file.
    import tomlkit

    contexts = document.setdefault("contexts", tomlkit.table(is_super_table=True))
    table = contexts.setdefault(name, tomlkit.table())
    for key, value in values.items():
        if value is not None:
            table[key] = value
        elif key in table:
            del table[key]
    _save(document.as_string() if "current" in document else _with_current(document, name))


def use(name: str) -> None:
    """Make a context the current one."""
    _save(_with_current(_document(), name))


def remove(name: str) -> None:
    """Remove a context."""
    document = _document()
    del cast(Any, document["contexts"])[name]
    if document.get("current") == name:
        del document["current"]
    _save(document.as_string())


def _with_current(document: TOMLDocument, name: str) -> str:
    """Return the file's text with this current context, which stands before all tables."""
    if "current" in document:
        document["current"] = name
        return document.as_string()
    return f"current = {json.dumps(name)}\n\n{document.as_string()}"


def _document() -> TOMLDocument:
    file = path()
    return _parse(file, _text(file))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as failed:
        raise WrongUsageError(f"{file} cannot be read: {failed}") from failed


def _parse(file: Path, text: str) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        return tomlkit.parse(text)
    except ParseError as wrong:
        raise WrongUsageError(f"{file}, line {wrong.line}: {wrong}; correct it, or delete the file") from wrong


def _save(text: str) -> None:
    """Write the file whole: a reader has the old one or the new one."""
    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError as failed:
        raise WrongUsageError(f"{file} cannot be written: {failed}") from failed


class _Checks:
    """Checks of a file; an error names its line."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text

    def context(self, name: str, values: object) -> Context:
        """Return a context of the file."""
        section = f"contexts.{name}"
        if not isinstance(values, Mapping):
            self.fail(f"{section} must be a table: [{section}]", "contexts", name)
        self.keys(values, KEYS, section)
        for key, value in values.items():
            if not isinstance(value, str) or not value:
                self.fail(f"{key} must be a text in quotation marks", section, key)
        if not values.get("server"):
            self.fail('a context needs a server: server = "HOST:PORT"', section, "")
        if values.get("sharded", "none") not in get_args(Ordering):
            self.fail(f"sharded must be one of {', '.join(get_args(Ordering))}", section, "sharded")
        given: Any = {key.replace("-", "_"): self._resolved(key, str(value)) for key, value in values.items()}
        return Context(**given)

    def keys(self, values: Mapping[str, object], known: tuple[str, ...], section: str) -> None:
        """Refuse keys that mean nothing."""
        for key in values:
            if key in known:
                continue
            if key in _SECRETS:
                self.fail(
                    f"{key} does not belong here: keep it in a file of its own, and name that: token-file", section, key
                )
            self.fail(f"{key!r} is not known here; known are {', '.join(known)}", section, key)

    def fail(self, message: str, section: str, key: str) -> NoReturn:
        """Raise the error for a key of a section."""
        raise WrongUsageError(f"{self._file}, line {self._line(section, key)}: {message}")

    def _resolved(self, key: str, value: str) -> str:
        if key not in _FILES or (key == "tls-ca" and value == "system"):
            return value
        return str(self._file.parent / Path(value).expanduser())

    def _line(self, section: str, key: str) -> int:
        """Return the line of a key, or of its section, as nearly as can be told without a parser's positions."""
        found, inside = 1, not section
        for number, text in enumerate(self._text.splitlines(), 1):
            header = re.match(r"\s*\[\s*([^\]]+?)\s*\]", text)
            if header:
                inside = header.group(1).replace('"', "") == section
                found = number if inside else found
            elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", text):
                return number
        return found
