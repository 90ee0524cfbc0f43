"""The tokens file: what is wrong in it is named, and never what is secret in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracker.contract.refusal import Refused
from tracker.security.guard import Guard
from tracker.security.identities import TokensFileError, entry, hash_of, new_token, read_clients

_HASH = hash_of("trk_example")
_GOOD = f'[clients.a]\nsha256 = "{_HASH}"\nscopes = ["report"]\njobs = ["*"]\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[clients.a\n", "not valid TOML at line 1"),
        (f'{_GOOD}token = "trk_example"\n', "[clients.a] token does not belong here"),
        (f'{_GOOD}scope = ["watch"]\n', "has 'scope', which is not known"),
        (_GOOD.replace(_HASH, "trk_example"), "sha256 must be the SHA-256 of a token"),
        (_GOOD.replace(_HASH, _HASH.upper()), "as 64 small hexadecimal digits"),
        (_GOOD.replace('"report"', '"reprot"'), "'reprot' is not one of report, watch, operate, backup, admin"),
        (_GOOD.replace('["report"]', '"report"'), "scopes must be a list of texts"),
        (_GOOD.replace('["*"]', "[]"), "jobs must be a list of texts"),
        (_GOOD.replace(f'sha256 = "{_HASH}"', ""), "needs sha256 or certificate"),
        (_GOOD.replace("clients.a", 'clients."a b"'), "'a b' cannot be a client's name"),
        (_GOOD + _GOOD.replace("clients.a", "clients.b"), "clients 'a' and 'b' have the same token"),
        ("clients = 7\n", "clients must be tables"),
        ("[client.a]\n", "the file has 'client', which is not known"),
        ("\0", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_told_without_what_is_secret(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(text)
    with pytest.raises(TokensFileError) as wrong:
        read_clients(file)
    assert told in str(wrong.value)
    assert str(file) in str(wrong.value)
    assert _HASH not in str(wrong.value)
    assert "trk_example" not in str(wrong.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokensFileError, match="cannot be read: No such file"):
        read_clients(tmp_path / "tokens.toml")


def test_what_is_printed_of_the_clients_has_no_hash(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(_GOOD)
    assert _HASH[:8] not in repr(read_clients(file))
    assert _HASH[:8] not in str(vars(Guard(file))["_path"])


def _caller(guard: Guard, *values: str) -> str:
    metadata = [("authorization", value) for value in values]
    return guard.caller("Report", metadata, dict).identity.name


def test_two_tokens_of_a_client_count_while_one_is_replaced(tmp_path: Path) -> None:
    old, new = new_token(), new_token()
    file = tmp_path / "tokens.toml"
    text = entry("shop", old, ["report"], ["*"])
    file.write_text(text.replace(f'"{hash_of(old)}"', f'["{hash_of(old)}", "{hash_of(new)}"]'))
    guard = Guard(file)
    assert {_caller(guard, f"Bearer {token}") for token in (old, new)} == {"shop"}


@pytest.mark.parametrize(
    "values", [["trk_example"], ["Basic trk_example"], ["Bearer "], ["Bearer trk_example"] * 2, []]
)
def test_a_header_of_another_form_is_refused(tmp_path: Path, values: list[str]) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(_GOOD)
    assert _caller(Guard(file), "bearer trk_example") == "a"
    with pytest.raises(Refused, match="UNAUTHENTICATED: ") as refused:
        _caller(Guard(file), *values)
    assert "trk_example" not in str(refused.value)


def test_a_hash_is_not_a_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(_GOOD)
    with pytest.raises(Refused, match="does not know this token"):
        _caller(Guard(file), f"Bearer {_HASH}")


def test_a_file_with_a_mistake_or_without_a_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(_GOOD)
    guard = Guard(file)
    for text in ("[clients.", "[clients.a]\n"):
        file.write_text(text)
        guard.reread()
        assert _caller(guard, "Bearer trk_example") == "a"
    file.unlink()
    guard.reread()
    assert _caller(guard, "Bearer trk_example") == "a"
    file.write_text("# nobody\n")
    guard.reread()
    with pytest.raises(Refused):
        _caller(guard, "Bearer trk_example")


def test_a_call_under_way_is_refused_once_its_client_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(_GOOD)
    guard = Guard(file)
    caller = guard.caller("Report", [("authorization", "Bearer trk_example")], dict)
    caller.authorize("shop")
    file.write_text(_GOOD.replace('"*"', '"mail"'))
    guard.reread()
    with pytest.raises(Refused, match="no access to job 'shop': its patterns are 'mail'"):
        caller.authorize("shop")
    file.write_text(_GOOD.replace("report", "watch"))
    guard.reread()
    with pytest.raises(Refused, match="needs the scope report, and has watch"):
        caller.authorize("mail")
    file.write_text("# nobody\n")
    guard.reread()
    with pytest.raises(Refused, match="does not know this token"):
        caller.authorize("mail")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_changes_nothing_and_a_comment_removes_all(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(_GOOD)
    guard = Guard(file)
    file.write_text(text)
    guard.reread()
    assert _caller(guard, "Bearer trk_example") == "a"
    file.write_text("# nobody\n")
    guard.reread()
    with pytest.raises(Refused):
        _caller(guard, "Bearer trk_example")
