"""A file of rules is used as a whole or refused with what is wrong; a marker keeps to its place."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.client.waiting import AcceptedEnds
from tracker.contract.events import Advanced, Body, Ended, Event, Late
from tracker.contract.values import Reason
from tracker.notify.delivery import write_marker
from tracker.notify.rules import Marker, Rule, RulesError, Webhook, marker_place, read_rules

WEBHOOK = 'webhook = { url = "http://127.0.0.1/x" }\n'
RULE = f'[[rule]]\nname = "a"\njob = "flights"\n{WEBHOOK}'


def rules(tmp_path: Path, text: str) -> tuple[Rule, ...]:
    (tmp_path / "rules.toml").write_text(text)
    return read_rules(tmp_path / "rules.toml")


def event(kind: Body) -> Event:
    return Event(7, 1_772_323_200_000_000_000, "d1", kind)


def ended(scope: str = "JFK", name: str = "day", reason: Reason = Reason.COMPLETE, by_drain: bool = False) -> Event:
    return event(Ended("clean", scope, name, None, 3, reason, 0, by_drain))


def test_a_rule_has_what_its_table_has(tmp_path: Path) -> None:
    text = RULE.replace(WEBHOOK, "") + (
        'kinds = ["Ended", "Late"]\nreasons = ["EXPIRED"]\nsegments = ["clean"]\n'
        'scopes = ["", "JFK"]\nby-drain = true\n'
        'webhook = { url = "https://a.example/b", secret-file = "s", timeout = 2 }\n'
    )
    webhook = Webhook("https://a.example/b", tmp_path / "s", 2.0)
    assert rules(tmp_path, text) == (
        Rule("a", "flights", ("Ended", "Late"), AcceptedEnds(["EXPIRED"], True), ("clean",), ("", "JFK"), webhook),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no rules"),
        ("rule = 3", "it has no rules"),
        ("[rule]\nname = 1", "it has no rules"),
        (RULE + "[[rules]]", "'rules' is unknown"),
        (RULE + "kind = 1", "rule a: 'kind' is unknown; there are by-drain, delta, job"),
        (RULE + 'kinds = ["Closed"]', "'Closed' is none of Advanced, Drain"),
        (RULE + 'reasons = ["DONE"]', "'DONE' is none of COMPLETE, EXPIRED, ABANDONED"),
        (RULE + 'scopes = "JFK"', "give a list of texts"),
        (RULE + "by-drain = 1", "give true or false"),
        (RULE + RULE, "two rules have the name 'a'"),
        (RULE + 'marker = "/x/{name}"', "give one of webhook, marker, delta"),
        (RULE.replace(WEBHOOK, ""), "give one of webhook, marker, delta"),
        (RULE.replace('name = "a"', ""), "rule 1: name is missing"),
        (RULE.replace('"flights"', "3"), "job is 3; give a text"),
        (RULE.replace("http:", "ftp:"), "is no address such as https"),
        (RULE.replace("//127", "//u:p@127"), "would be logged"),
        (RULE.replace("{ url", "{ token = 3, url"), "webhook: 'token' is unknown"),
        (RULE.replace('x" }', 'x", timeout = 0 }'), "timeout is 0"),
        (RULE.replace(WEBHOOK, 'marker = "x/{name}"'), "neither an absolute path"),
        (RULE.replace(WEBHOOK, 'marker = "/x/_SUCCESS"'), "the same for all events"),
        (RULE.replace(WEBHOOK, 'marker = "/x/{name"'), "a brace itself is written twice"),
        (RULE.replace(WEBHOOK, 'marker = "/x/{name.real}"'), "{name.real} is unknown for Ended"),
        (RULE.replace(WEBHOOK, 'marker = "/x/{name!r}"'), "{name} is unknown for Ended"),
        (RULE.replace(WEBHOOK, 'kinds = ["Ended", "Advanced"]\nmarker = "/x/{name}"'), "unknown for Ended, Advanced"),
        (RULE.replace(WEBHOOK, 'delta = "/x"'), "delta: write it as"),
        (RULE.replace(WEBHOOK, 'delta = { table = "/x" }'), "property is missing"),
        (
            RULE.replace(WEBHOOK, 'delta = { table = "x", property = "a" }'),
            "delta: table: 'x' is neither an absolute path",
        ),
        (RULE.replace(WEBHOOK, 'delta = { table = "/x", property = "delta.a" }'), "are Delta's own"),
        (RULE.replace(WEBHOOK, 'delta = { table = "/x", property = "{what}" }'), "delta: property: {what} is unknown"),
        (RULE.replace(WEBHOOK, 'delta = { table = "/x", property = "a", value = "{what}" }'), "delta: value: {what}"),
        (RULE.replace(WEBHOOK, 'marker = "s3://{job}/{name}"'), "the bucket is the same for all events"),
        (RULE.replace(WEBHOOK, 'delta = { table = "/x", property = "{scope}" }'), "could make it one of Delta's own"),
        (
            RULE.replace(WEBHOOK, 'delta = { table = "/x", property = "del{scope}" }'),
            "could make it one of Delta's own",
        ),
        (RULE.replace("//127.0.0.1", "//[::1"), "Invalid IPv6"),
        ("[[rule", "Expected ']]'"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(RulesError) as refused:
        rules(tmp_path, text)
    assert why in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/rules.toml: ")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="No such file"):
        read_rules(tmp_path / "rules.toml")


def test_only_complete_ends_count_unless_a_rule_wants_others() -> None:
    rule = Rule("a", "flights")
    assert rule.concerns(ended())
    assert not rule.concerns(ended(reason=Reason.ABANDONED))
    assert not rule.concerns(ended(by_drain=True)), "more may follow in a later deployment"
    assert not rule.concerns(event(Late("clean", "JFK", "day", "p", 1, 0)))
    wants_more = Rule("a", "flights", ("Ended", "Late"), AcceptedEnds(["COMPLETE", "ABANDONED"], by_drain=True))
    assert wants_more.concerns(ended(reason=Reason.ABANDONED, by_drain=True))
    assert wants_more.concerns(event(Late("clean", "JFK", "day", "p", 1, 0)))


def place(tmp_path: Path, marker: str, kinds: str = "") -> Rule:
    """Return the only rule of a file whose marker is this."""
    (rule,) = rules(tmp_path, RULE.replace(WEBHOOK, f"{kinds}\nmarker = {json.dumps(marker)}"))
    return rule


@pytest.mark.parametrize(
    ("marker", "where"),
    [
        ("/lake/flights/{scope}/{name}/_SUCCESS", ("/lake/flights", "JFK/day/_SUCCESS")),
        ("/{name}", ("", "day")),
        ("/lake/x{{y}}/z-{name}", ("/lake/x{y}", "z-day")),
        ("s3://lake/{name}", ("s3://lake", "day")),
        ("s3://lake/a%20b/c/{scope}{{{name}}}", ("s3://lake/a%20b/c", "JFK{day}")),
        ("file:///{name}", ("file://", "day")),
    ],
)
def test_reporters_names_stand_in_a_markers_name_only(tmp_path: Path, marker: str, where: tuple[str, str]) -> None:
    assert marker_place(place(tmp_path, marker), ended()) == where


#: Names as reporters may choose them: 512 bytes at most.
NAMES = st.one_of(
    st.sampled_from(["", ".", "..", "%", "%2F", "a/b", "/", "\\", "\0", "é" * 256, "x" * 512, "x" * 511 + "y", " "]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)


@pytest.mark.thorough
@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=8, unique=True))
def test_each_substream_has_a_marker_of_its_own_below_the_place(names: list[tuple[str, str]]) -> None:
    rule = Rule("a", "flights", marker=Marker("/lake", "{scope}/{name}/_SUCCESS"))
    with TemporaryDirectory() as directory:
        for scope, name in names:
            _, below = marker_place(rule, ended(scope, name))
            write_marker(directory, below, f"{scope}\0{name}".encode())
        written = [file for file in Path(directory).rglob("*") if file.is_file()]
        assert sorted(file.read_bytes() for file in written) == sorted(f"{a}\0{b}".encode() for a, b in names)
        assert {(len(file.relative_to(directory).parts), file.name) for file in written} == {(3, "_SUCCESS")}


def test_a_key_of_an_object_is_the_markers_name_as_it_is(tmp_path: Path) -> None:
    """The store of directories decodes addresses as those of clouds do."""
    lake = tmp_path / "la ke"
    lake.mkdir()
    rule = Rule("a", "flights", marker=Marker(f"file://{tmp_path}/la%20ke", "{scope}/{name}/_SUCCESS"))
    names = [("..", ".."), ("a/b", "c"), ("a", "b/c"), ("", "d"), ("../x", "."), ("%2E%2E", "é" * 256)]
    for scope, name in names:
        write_marker(*marker_place(rule, ended(scope, name)), b"")
    assert len(list(lake.glob("*/*/_SUCCESS"))) == len(names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["la ke"]


@given(st.text(max_size=40) | st.from_regex(r"https?://[\[\]@:/0-9a-z.%]{0,20}", fullmatch=True))
def test_any_text_is_an_address_or_refused(url: str) -> None:
    with TemporaryDirectory() as directory, suppress(RulesError):
        rules(Path(directory), RULE.replace(WEBHOOK, f"webhook = {{ url = {json.dumps(url)} }}"))


def test_what_a_marker_may_name_depends_on_the_kind(tmp_path: Path) -> None:
    rule = place(tmp_path, "s3://lake/{job}/{segment}-{time}", 'kinds = ["Advanced"]')
    assert marker_place(rule, event(Advanced("clean", 24))) == ("s3://lake", "flights/clean-24")
