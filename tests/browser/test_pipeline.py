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
