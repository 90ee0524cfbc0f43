"""A file of rules is used as a whole or refused with what is wrong; a marker's address keeps to its directory."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.client.accepted import AcceptedEnds
from tracker.contract.callers import Event
from tracker.contract.events import Advanced, Body, Ended, Late
from tracker.contract.values import Reason
from tracker.notify.describing import marker_address
from tracker.notify.rules import Rule, RulesError, Webhook, read_rules

WEBHOOK = 'webhook = { url = "http://127.0.0.1/x" }\n'
RULE = f'[[rule]]\nname = "a"\njob = "flights"\n{WEBHOOK}'


def rules(tmp_path: Path, text: str) -> tuple[Rule, ...]:
    (tmp_path / "rules.toml").write_text(text)
    return read_rules(tmp_path / "rules.toml")


def event(kind: Body) -> Event:
    return Event(7, datetime(2026, 3, 1, tzinfo=timezone.utc), "d1", kind)


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


@given(scope=st.text(min_size=1), name=st.text(min_size=1))
def test_a_marker_is_where_its_rule_has_it_whatever_names_reporters_choose(scope: str, name: str) -> None:
    rule = Rule("a", "flights", marker="/lake/{scope}/{name}/_SUCCESS")
    *directory, last = Path(marker_address(rule, ended(scope, name))).resolve().parts
    assert directory[:2] == ["/", "lake"]
    assert len(directory) == 4
    assert last == "_SUCCESS"


@given(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True))
def test_different_substreams_have_different_markers(names: list[str]) -> None:
    rule = Rule("a", "flights", marker="/lake/{name}")
    one, other = (marker_address(rule, ended(name=name)) for name in names)
    assert one != other


def test_what_a_marker_may_name_depends_on_the_kind() -> None:
    rule = Rule("a", "flights", ("Advanced",), marker="s3://lake/{job}/{segment}-{time}")
    assert marker_address(rule, event(Advanced("clean", 24))) == "s3://lake/flights/clean-24"
