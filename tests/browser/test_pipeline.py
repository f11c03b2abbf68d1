"""The operator's page: what waits, who works, and how fast."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from broker_schemas import keys
from broker_schemas.heartbeat import Heartbeat, broker_ms

pytestmark = pytest.mark.browser

TALKER = Heartbeat(
    worker="talker-a-1", role="talker", model="hum", profile="0123456789", at=0, slots=16, held=4, oldest_s=7.4,
    counts={"jobs": 3, "draws": 1000, "takeovers": 2},
)  # fmt: skip
ACOUSTIC = replace(TALKER, worker="acoustic-b-2", role="acoustic", held=0, counts={"windows": 90, "samples": 0})


def says(site, beat: Heartbeat, **changes) -> None:
    """The worker's heartbeat, as of now."""
    client = site.broker.client()
    beat = replace(beat, at=broker_ms(client.time()), **changes)
    client.hset(keys.WORKERS, beat.worker, beat.pack())


def row(page, worker: str):
    return page.locator("#workers tr").filter(has_text=worker)


def test_queues_and_workers(site, page):
    site.submitted()
    says(site, TALKER)
    says(site, ACOUSTIC, draining=True)
    page.goto(f"{site.url}/pipeline")
    expect(page.locator("#queues tr").filter(has_text="hum").locator("td").nth(1)).to_have_text("1")
    expect(row(page, "talker-a-1")).to_contain_text("4 of 16")
    expect(row(page, "talker-a-1")).to_contain_text("1,000 draws")
    expect(row(page, "talker-a-1")).to_contain_text("2 takeovers")
    expect(row(page, "acoustic-b-2")).to_contain_text("drained")
    expect(page.locator("#totals")).to_contain_text("Leases held4")


def test_a_worker_s_pace_is_what_it_did_between_two_heartbeats(site, page):
    says(site, TALKER)
    page.goto(f"{site.url}/pipeline")
    expect(row(page, "talker-a-1")).to_be_visible()
    says(site, TALKER, counts={"draws": 100_000})
    expect(row(page, "talker-a-1")).not_to_contain_text(" 0.0 draws")
    expect(row(page, "talker-a-1").locator("td").nth(4)).to_have_text(re.compile(r"^\d{3,}\.\d draws$"))


def test_how_much_of_its_time_a_worker_works_is_shown(site, page):
    says(site, TALKER, counts={"draws": 1000, "busy_ms": 0})
    page.goto(f"{site.url}/pipeline")
    expect(row(page, "talker-a-1")).to_be_visible()
    says(site, TALKER, counts={"draws": 1000, "busy_ms": 10_000_000})
    expect(row(page, "talker-a-1").locator("td").nth(4)).to_contain_text("busy 100%")
    expect(row(page, "talker-a-1")).not_to_contain_text("busy_ms")


def test_who_is_gone_is_not_shown(site, page):
    says(site, TALKER)
    page.goto(f"{site.url}/pipeline")
    expect(row(page, "talker-a-1")).to_be_visible()
    site.broker.client().delete(keys.WORKERS)
    expect(page.locator("#told")).to_contain_text("No worker is alive")
    expect(row(page, "talker-a-1")).to_have_count(0)


ARCHIVER = replace(
    TALKER, worker="archive-c-3", role=keys.ARCHIVE, model="", profile="", slots=2, held=2,
    counts={"archived": 1200, "there": 0, "failed": 3},
)  # fmt: skip


def test_an_archiver_is_shown_and_is_no_worker_that_serves(site, page):
    says(site, ARCHIVER, stuck=True)
    page.goto(f"{site.url}/pipeline")
    cells = row(page, "archive-c-3").locator("td")
    expect(cells.nth(0)).to_have_text("archive-c-3archive")
    expect(cells.nth(1)).to_contain_text("stuck")
    expect(cells.nth(5)).to_have_text("1,200 archived, 3 failed")
    expect(page.locator("#totals")).to_contain_text("Leases held0Workers0")
    expect(page.locator("#told")).to_contain_text("No worker is alive")
    says(site, ARCHIVER, counts={"archived": 100_000})
    expect(cells.nth(4)).to_have_text(re.compile(r"^\d{3,}\.\d archived$"))


def test_what_waits_to_be_archived_is_shown_where_somebody_archives(site, page):
    client = site.broker.client()
    client.zadd(keys.UNARCHIVED, {"job_a": 1, "job_b": 2})
    client.zadd(keys.UNARCHIVED_SINCE, {"job_a": broker_ms(client.time()) - 90_000, "job_b": 2e15})
    page.goto(f"{site.url}/pipeline")
    expect(page.locator("#told")).to_contain_text("No worker is alive")
    panel = page.get_by_role("region", name="Archive")
    expect(panel).to_have_count(0)
    says(site, ARCHIVER)
    waits = re.compile(r"^The first has waited, in seconds(9\d|\d{3,})$")
    expect(panel.locator("div")).to_have_text(["Wait to be archived2", waits, "Archived0", "Attempts that failed0"])
    expect(panel).not_to_contain_text("No archiver is alive")
    client.hset(keys.ARCHIVED, mapping={"archived": 1234, "failed": 5})
    client.delete(keys.WORKERS)
    expect(panel).to_contain_text("Archived1,234Attempts that failed5")
    expect(panel).to_contain_text("No archiver is alive")


def test_webhooks_are_shown_where_there_were_any(site, page):
    page.goto(f"{site.url}/pipeline")
    expect(page.locator("#told")).to_contain_text("No worker is alive")
    panel = page.get_by_role("region", name="Webhooks")
    expect(panel).to_have_count(0)
    client = site.broker.client()
    client.hset(keys.WEBHOOKS_OWED, mapping={"job_a": "0\nhum", "job_b": "2\nhum"})
    client.hset(keys.WEBHOOK_MESSAGES, "job_b", b"what is to be told")
    client.hset(keys.WEBHOOKS_DONE, mapping={"delivered": 1234, "failed": 5, "given_up": 6})
    expect(panel.locator("div")).to_have_text(
        ["Wait to be told2", "Of these, tried in vain1", "Delivered1,234", "Attempts that failed5", "Given up6"]
    )
