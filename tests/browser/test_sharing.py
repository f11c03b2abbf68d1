"""The link of a job: copied, and said to be."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# As on a page that came over http from another machine.
NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
NO_COPY = "document.execCommand = () => false;"
# What is told, one after the other.
TOLD = """() => {
  window.told = [];
  const copied = document.getElementById("copied");
  new MutationObserver(() => told.push(copied.textContent)).observe(copied, { childList: true });
}"""


def opened(site, ear) -> str:
    """A job that is under way, open in the page; its link."""
    job = site.submitted()["id"]
    ear.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.url)
    ear.open(site, job)
    return f"{site.url}/#job={job}"


@pytest.mark.parametrize("script", ["", NO_CLIPBOARD], ids=["lent", "over http"])
def test_the_link_is_copied_and_that_is_said_each_time(site, ear, script):
    ear.page.add_init_script(script)
    link = opened(site, ear)
    copy, said = ear.page.get_by_role("button", name="Copy link"), ear.page.locator("#copied[role=status]")
    expect(said).to_have_text("")  # there before it says anything: else nobody hears it
    ear.page.evaluate(TOLD)
    for times in (1, 2):
        copy.press("Enter")
        ear.until(f"told.filter((text) => text).length === {times}")
        expect(said).to_contain_text("The link is copied")
        expect(copy).to_be_focused()
    first, between, second = ear.page.evaluate("told")
    assert (first, between) == (second, "")  # told anew, not left to stand
    ear.page.locator("#input").fill("")
    ear.page.locator("#input").focus()
    ear.page.keyboard.press("Control+V")
    expect(ear.page.locator("#input")).to_have_value(link)


def test_a_link_that_cannot_be_copied_is_said_to_be_in_the_address_bar(site, ear):
    ear.page.add_init_script(NO_CLIPBOARD + NO_COPY)
    opened(site, ear)
    ear.page.get_by_role("button", name="Copy link").click()
    expect(ear.page.locator("#copied")).to_contain_text("take the link from its address bar")


def test_another_job_s_link_is_not_said_to_be_copied(site, ear):
    opened(site, ear)
    ear.page.get_by_role("button", name="Copy link").click()
    expect(ear.page.locator("#copied")).not_to_be_empty()
    other = site.submitted(input="another")["id"]
    ear.page.goto(f"{site.url}/#job={other}")
    expect(ear.page.locator("#words")).to_have_text("another")
    expect(ear.page.locator("#copied")).to_be_empty()
