"""The page in a real browser at a real server, as a person uses it."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page import jobs
from tests.page.browsing import Opens, inaccessible, sideways
from tests.server.processes import Server, Servers
from tracker.client import DrainState, JobSpec, label


@pytest.mark.thorough
def test_from_the_list_of_jobs_to_why_a_substream_is_open(site: Server, window: Opens) -> None:
    tab = window(site).open()
    expect(tab.get_by_role("row", name="flights")).to_contain_text("2")
    tab.get_by_role("link", name="flights").click()
    expect(tab.get_by_role("heading", name="flights", level=1)).to_be_visible()
    tab.get_by_role("link", name="2013-01-02 of scope LGA: explain").click()
    sheet = tab.get_by_role("dialog")
    expect(sheet.get_by_role("listitem")).to_contain_text(
        "segment 'raw': 3 in flight (3 sent, 0 received; last sent by 'radar', last received by 'nobody')"
    )
    expect(sheet).to_contain_text("tracker explain flights LGA 2013-01-02")
    tab.keyboard.press("Escape")
    expect(sheet).not_to_be_visible()
    expect(tab).not_to_have_url(re.compile("name="))
    tab.go_back()
    expect(sheet).to_be_visible()  # the address has everything that is shown
    assert not inaccessible(tab)


def test_the_graph_shows_what_is_in_flight_and_what_leads_back(site: Server, window: Opens) -> None:
    tab = window(site).job("flights")
    raw = tab.get_by_role("link", name="Segment raw: 3 elements in flight")
    expect(raw).to_contain_text("3")
    expect(tab.locator(".graph .segment")).to_have_count(3)
    expect(tab.locator(".graph .edge.back")).to_have_count(1)
    expect(tab.locator(".graph .edge")).to_have_count(4)
    raw.click()
    expect(tab.locator(".chosen")).to_contain_text("In flight on raw")
    expect(tab.locator("#substreams tbody tr")).to_have_count(1)


def test_substreams_are_found_by_what_they_wait_for_and_by_name(site: Server, window: Opens) -> None:
    tab = window(site).job("flights")
    waits, rows = tab.locator(".waits"), tab.locator("#substreams tbody tr")
    expect(waits.get_by_role("link", name="Front schedule 1")).to_be_visible()
    waits.get_by_role("link", name="Front charter 1").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("2013-01-03")
    expect(waits.locator("[aria-current]")).to_have_count(1)
    tab.get_by_role("link", name="Show all").click()
    expect(rows).to_have_count(2)
    tab.get_by_label("Find by scope or name").fill("lga 2013")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("LGA")
    tab.get_by_label("Find by scope or name").fill("nowhere")
    expect(tab.locator("#substreams [role=status]")).to_have_text("No open substream is like that.")


def test_long_lists_come_in_pages(site: Server, window: Opens) -> None:
    tab = window(site).job("many")
    rows = tab.locator("#substreams tbody tr")
    expect(rows).to_have_count(50)
    tab.get_by_role("button", name="Next page").click()
    expect(rows.first).to_contain_text("name 0050")
    tab.get_by_role("button", name="Next page").click()
    expect(rows).to_have_count(20)
    tab.get_by_role("button", name="First page").click()
    expect(rows.first).to_contain_text("name 0000")


def test_the_page_follows_the_job_without_a_reload(own_site: Server, window: Opens) -> None:
    with jobs.client_of(own_site) as client:
        producer = jobs.flights(client)
        tab = window(own_site).job("flights")
        tab.evaluate("window.sameDocument = true")
        in_flight = tab.locator("[data-number=in_flight] dd")
        expect(in_flight).to_have_text("3")
        report = producer.epoch()
        for number in range(3):
            report.received("raw", "LGA", "2013-01-02", label("LGA", number), end_time=20)
        report.report(commit=True)
        expect(in_flight).to_have_text("0")
        expect(tab.locator("#events tbody tr").first).to_contain_text("LGA")
        expect(tab.locator("#substreams tbody tr")).to_have_count(1)  # the list follows, too
        assert tab.evaluate("window.sameDocument")
        client.delete_job("flights", force=True)
        expect(tab.get_by_role("alert")).to_contain_text("There is no job flights now")
        jobs.flights(client)
        expect(tab.get_by_role("alert")).not_to_be_visible()
    assert own_site.stop() == 0


@pytest.mark.thorough
def test_a_job_is_followed_from_its_first_moment(own_site: Server, window: Opens) -> None:
    with jobs.client_of(own_site) as client:
        client.define_job(
            JobSpec(job="flights", deployment="d1", segments=jobs.SEGMENTS, fronts=["schedule", "charter"])
        )
        tab = window(own_site).open("#/job?job=flights")
        front = tab.get_by_role("row", name="schedule")
        expect(front).to_contain_text("has promised nothing")
        expect(tab.locator("#producers")).to_contain_text("Nobody has reported yet.")
        jobs.flights(client)
        expect(front).to_contain_text("radar")
        expect(tab.locator("#producers tbody tr")).to_contain_text("run-1")
        expect(tab.locator("#substreams tbody tr")).to_have_count(2)
    assert own_site.stop() == 0


@pytest.mark.thorough
def test_it_tells_that_it_is_disconnected_and_comes_back_by_itself(
    servers: Servers, tmp_path: Path, window: Opens
) -> None:
    server = servers.start(tmp_path, "sqlite", "--metrics", "127.0.0.1:0")
    with jobs.client_of(server) as client:
        jobs.flights(client)
    tab = window(server).job("flights")
    tab.evaluate("window.sameDocument = true")
    server.kill()
    expect(tab.locator("#connection")).to_have_text("Disconnected, trying again")
    again = servers.start(tmp_path, "sqlite", "--metrics", server.metrics.removeprefix("http://"))
    expect(tab.locator("#connection")).to_have_text("Live")
    with jobs.client_of(again) as client:
        client.abandon("flights", "LGA", "2013-01-02")
    expect(tab.locator("[data-number=open] dd")).to_have_text("1")
    assert tab.evaluate("window.sameDocument")
    assert again.stop() == 0


def test_a_short_interruption_is_passed_over_and_a_frozen_server_noticed(own_site: Server, window: Opens) -> None:
    tab = window(own_site).open()
    tab.clock.install()
    tab.reload()
    tab.wait_for_selector("#connection[data-state=live]")
    os.kill(own_site.pid, signal.SIGSTOP)
    try:
        tab.clock.run_for(40_000)  # longer than a server is ever silent
        expect(tab.locator("#connection")).to_have_text("Disconnected, trying again")
    finally:
        os.kill(own_site.pid, signal.SIGCONT)
    tab.clock.run_for(30_000)
    expect(tab.locator("#connection")).to_have_text("Live")
    assert own_site.stop() == 0


def test_no_name_becomes_anything_but_text(site: Server, window: Opens) -> None:
    seen = window(site)
    tab = seen.job("hostile")
    assert tab.locator("main script, main img, dialog script, dialog img").count() == 0
    text = tab.locator("main").inner_text()
    assert jobs.HOSTILE in text
    assert "\\u{202e}gnol \\u{2066}x" in text  # shown as its code, and turns nothing around
    assert "a\\u{0}\\u{7}\\u{a}b\\u{7f}" in text
    assert not [c for c in "\u202e\u2066\x00\x07" if c in text]
    assert sideways(tab) == 0
    links = tab.locator("#substreams tbody a")
    expect(links).to_have_count(5)
    names = []
    for number in range(5):
        links.nth(number).click()
        sheet = tab.get_by_role("dialog")
        expect(sheet.get_by_role("listitem").first).to_be_visible()
        names.append(sheet.locator("h2").inner_text())
        tab.keyboard.press("Escape")
        expect(sheet).not_to_be_visible()
    assert names[0] == jobs.HOSTILE
    assert names[3:] == ["(blank)", "مرحبا"]
    for address in (
        "#/job?job=%3Cscript%3E",
        "#/job?job=hostile&name=%00%FF%E2%80%AE&scope=%3Cimg%20src=x%3E",
        "#/?text=%3Cb%3E",
    ):
        seen.open(address)
        assert tab.locator("main script, main img, main b, dialog img").count() == 0


@pytest.mark.thorough
def test_every_view_is_accessible_in_light_and_dark_and_on_a_phone(site: Server, window: Opens) -> None:
    for options in (
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"color_scheme": "light", "viewport": {"width": 375, "height": 740}, "has_touch": True},
    ):
        shown = window(site, **options)
        tab = shown.open()
        assert not inaccessible(tab)
        assert sideways(tab) == 0
        for job in ("flights", "hostile", "many"):
            shown.job(job)
            assert not inaccessible(tab), (options, job)
            assert sideways(tab) == 0, (options, job)
        tab = shown.job("flights", "&scope=LGA&name=2013-01-02")
        expect(tab.get_by_role("dialog").get_by_role("listitem")).to_be_visible()
        assert not inaccessible(tab), options
        assert sideways(tab) == 0


def test_what_is_not_accessible_is_found(site: Server, window: Opens) -> None:
    tab = window(site).open()
    tab.evaluate("document.querySelector('.version').style.color = '#ccc'")
    tab.evaluate("document.querySelector('label[for=jobs-text]').remove()")
    found = inaccessible(tab)
    assert [each.partition(":")[0] for each in found] == ["color-contrast", "label"]


def test_everything_is_reached_by_keyboard_and_shows_where_it_is(site: Server, window: Opens) -> None:
    tab = window(site).job("flights")
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        at = tab.evaluate(
            """() => {
              const at = document.activeElement, style = getComputedStyle(at);
              const halo = at.querySelector(".halo");
              const shown = style.outlineStyle !== "none" || (halo && getComputedStyle(halo).stroke !== "none");
              return [at.textContent || at.id, at === document.body || shown];
            }"""
        )
        assert at[1], f"the focus on {at[0]!r} cannot be seen"
        reached.add(at[0])
    assert reached >= {"Skip to the content", "text", "2013-01-02", "2013-01-03", "Pause", "Jobs"}
    assert any(text.startswith("Front") for text in reached)
    link = tab.get_by_role("link", name="2013-01-02 of scope LGA: explain")
    link.focus()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("dialog")).to_be_visible()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")
    assert tab.evaluate(
        "document.querySelector('dialog').contains(document.activeElement) || document.activeElement === document.body"
    )
    tab.keyboard.press("Escape")
    expect(link).to_be_focused()  # where one came from


def test_colours_follow_the_system_until_somebody_chooses(site: Server, window: Opens) -> None:
    shown = window(site, color_scheme="dark", reduced_motion="reduce")
    tab = shown.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = tab.evaluate(ground)
    tab.get_by_label("Colours").select_option("light")
    light = tab.evaluate(ground)
    assert light != dark
    tab.reload()
    assert tab.evaluate(ground) == light
    tab.get_by_label("Colours").select_option("system")
    assert tab.evaluate(ground) == dark
    tab.emulate_media(color_scheme="light")
    assert tab.evaluate(ground) == light
    moves = "(each) => parseFloat(getComputedStyle(each).transitionDuration) > 0"
    assert not tab.evaluate(f"[...document.querySelectorAll('*')].some({moves})")


@pytest.mark.thorough
def test_a_drain_shows_what_it_still_waits_for(own_site: Server, window: Opens) -> None:
    with jobs.client_of(own_site) as client:
        producer = jobs.flights(client)
        tab = window(own_site).job("flights")
        drain = tab.locator("#drain")
        expect(drain).to_contain_text("Nobody has asked this deployment to drain.")
        client.drain("flights", "d1", "now", timeout=timedelta(hours=1))
        expect(drain).to_contain_text("0 of 2")
        expect(drain).to_contain_text("Not finished: schedule, charter")
        assert not inaccessible(tab)
        report = producer.epoch()
        report.finish("schedule")
        report.finish("charter")
        report.report(commit=True)
        expect(drain).to_contain_text("2 of 2")
        expect(drain).to_contain_text("1 substream open, 3 elements in flight")
        client.abandon("flights", "LGA", "2013-01-02")
        expect(drain).to_contain_text("Drained")
        assert client.job("flights").drain.state is DrainState.DRAINED
    assert own_site.stop() == 0
