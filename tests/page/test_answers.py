"""Answers of the page's addresses to programs, and to those who mean no good."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest

from tests.page import jobs
from tests.server.processes import Server, Servers
from tests.web.fetching import Page, get
from tracker.client.texts import why_open


def ask(server: Server, path: str, **parameters: Any) -> dict[str, Any]:
    page = get(f"{server.metrics}/api{path}?{urllib.parse.urlencode(parameters)}")
    assert page.status == 200, page.text
    answer: dict[str, Any] = json.loads(page.text.encode("latin1"))
    return answer


def refused(server: Server, path: str, **parameters: Any) -> tuple[int, dict[str, Any]]:
    page = get(f"{server.metrics}/api{path}?{urllib.parse.urlencode(parameters)}")
    return page.status, json.loads(page.text)


@pytest.mark.parametrize(
    "path", ["/", "/static/main.js", "/api/jobs", "/api/live/job?job=nowhere", "/api/explain?job=x"]
)
def test_no_answer_lets_a_browser_do_more_than_show_it(site: Server, path: str) -> None:
    headers = get(site.metrics + path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")
    assert "server" not in headers


def test_the_files_of_the_page_have_nothing_inline_and_nothing_from_elsewhere(site: Server) -> None:
    html = get(site.metrics + "/").text
    assert "<script>" not in html
    assert "<style" not in html
    assert " style=" not in html
    for each in ("http://", "https://", "//cdn"):
        assert each not in html


def test_jobs_are_listed_and_found_by_parts_of_their_names(site: Server) -> None:
    answer = ask(site, "/jobs")
    assert [job["job"] for job in answer["jobs"]] == ["flights", "hostile", "many"]
    assert [job["job"] for job in ask(site, "/jobs", text="FLI ght")["jobs"]] == ["flights"]
    flights = answer["jobs"][0]
    assert (flights["open"], flights["in_flight"], flights["ended"], flights["drain"]) == (2, 3, 1, "not_draining")


def test_a_substream_is_explained_as_on_the_command_line(site: Server) -> None:
    with jobs.client_of(site) as client:
        for scope, name in (("LGA", "2013-01-02"), ("EWR", "2013-01-03"), ("JFK", "2013-01-01"), ("no", "body")):
            expected = list(why_open(client.job("flights"), client.explain("flights", scope, name)))
            answer = ask(site, "/explain", job="flights", scope=scope, name=name)
            assert [_timeless(each) for each in answer["reasons"]] == [_timeless(each) for each in expected]
            assert answer["named"] == (name != "body")


def _timeless(text: str) -> str:
    return text.partition("last promise")[0] + text.partition(")")[2]


def test_substreams_come_in_pages_none_twice_and_none_left_out(site: Server) -> None:
    names, after = [], "-1"
    while after is not None:
        answer = ask(site, "/substreams", job="many", after=after, limit=7)
        names += [each["name"] for each in answer["substreams"]]
        after = answer["following"]
    assert names == [f"name {number:04}" for number in range(120)]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({"front": "schedule"}, ["2013-01-03"]),
        ({"front": "nowhere"}, []),
        ({"segment": "raw"}, ["2013-01-02"]),
        ({"segment": "clean"}, []),
        ({"kind": "stalled"}, []),
        ({"text": "ewr"}, ["2013-01-03"]),
        ({"text": "2013 lga", "segment": "raw"}, ["2013-01-02"]),
    ],
)
def test_substreams_are_chosen_by_what_they_wait_for(site: Server, chosen: dict[str, str], names: list[str]) -> None:
    assert [each["name"] for each in ask(site, "/substreams", job="flights", **chosen)["substreams"]] == names


def test_events_are_read_from_the_newest_back(site: Server) -> None:
    newest = ask(site, "/events", job="flights", limit=2)
    assert [each["seq"] for each in newest["events"]] == [newest["last_seq"] - 1, newest["last_seq"]]
    before = ask(site, "/events", job="flights", limit=2, before=newest["events"][0]["seq"])
    assert [each["seq"] for each in before["events"]][-1] == newest["events"][0]["seq"] - 1
    assert ask(site, "/events", job="flights", before=1)["events"] == []


@pytest.mark.parametrize(
    ("path", "parameters", "status", "words"),
    [
        ("/substreams", {"job": "nowhere"}, 404, "there is no job"),
        ("/explain", {"job": ""}, 404, "there is no job"),
        ("/events", {"job": "nowhere\x00"}, 404, "there is no job"),
        ("/substreams", {"job": "flights", "after": "x"}, 400, "after='x' is not a number"),
        ("/substreams", {"job": "flights", "after": "9" * 30}, 400, "is not a number"),
        ("/substreams", {"job": "flights", "limit": "٣"}, 400, "is not a number"),
        ("/substreams", {"job": "flights", "text": "x" * 5000}, 400, "search for a part of it"),
        ("/explain", {"job": "flights", "scope": "", "name": ""}, 400, "0 bytes"),
        ("/explain", {"job": "flights", "scope": "x" * 10_000, "name": "a"}, 400, "512"),
        ("/explain", {"job": "flights", "scope": "a", "name": "y" * 10_240}, 400, "512"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_reason(
    site: Server, path: str, parameters: dict[str, str], status: int, words: str
) -> None:
    found, answer = refused(site, path, **parameters)
    assert found == status, answer
    assert words in answer["error"]


@pytest.mark.parametrize(
    "query",
    [
        "job=%FF%FE&name=%ED%A0%80&scope=%C0%80",
        "job=flights&scope=%FF&name=%00",
        "&&==;",
        "job=flights" + "&a=b" * 2000,
    ],
)
def test_no_request_is_an_internal_error(site: Server, query: str) -> None:
    for path in ("jobs", "substreams", "explain", "events"):
        assert get(f"{site.metrics}/api/{path}?{query}").status in (200, 400, 404)
    for path in (
        "/static/../application.py",
        "/static/%2e%2e/application.py",
        "/static/",
        "/api/nothing",
        "/static/%00",
    ):
        assert get(site.metrics + path).status == 404


def test_a_page_of_substreams_is_small_however_long_its_names_are(site: Server) -> None:
    assert ask(site, "/substreams", job="flights", limit=10**9)["following"] is None
    assert len(json.dumps(ask(site, "/substreams", job="hostile"))) < 100_000


def test_the_page_can_be_left_out(servers: Servers, tmp_path: Any) -> None:
    server = servers.start(tmp_path, "memory", "--metrics", "127.0.0.1:0", "--no-page")
    addresses: Page = get(server.metrics + "/")
    assert addresses.text == "/metrics\n/healthz\n/readyz\n"
    assert get(server.metrics + "/api/jobs").status == 404
    assert server.stop() == 0
