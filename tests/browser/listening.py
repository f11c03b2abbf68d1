"""What a page has of a job's sound, what it scheduled, and what came out of it."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.site import Site
from tests.waiting import PATIENCE_S

EAR = Path(__file__).with_name("ear.js")


class Ear:
    """An open tab, and what can be heard in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.add_init_script(path=EAR)

    def open(self, site: Site, job: str | None = None) -> None:
        self.page.goto(f"{site.url}/#job={job}" if job else site.url)

    def sing(self, text: str = "la la", button: str = "Sing") -> str:
        """Write and press; the job."""
        self.page.locator("#input").fill(text)
        self.page.get_by_role("button", name=button, exact=True).click()
        return self.opened()

    def opened(self) -> str:
        """The job that the address names, once there is one."""
        self.page.wait_for_url("**/#job=*")
        return self.page.url.partition("#job=")[2]

    def listen(self) -> None:
        """Record from here on, once the open job is known."""
        self.until("listener.playback !== null")
        self.page.evaluate("ear.listen()")

    def until(self, condition: str) -> None:
        """Wait for a condition on `listener`, the page's panel, or on `ear`; raises Error where it never comes."""
        # Playwright's own waiting evaluates text in the page, which the page's policy forbids.
        self.page.evaluate(
            f"""async (patienceMs) => {{
              const {{ listener }} = await import("/page/main.js");
              const until = performance.now() + patienceMs;
              while (!({condition})) {{
                if (performance.now() > until) throw new Error("never came about");
                await new Promise((resolve) => setTimeout(resolve, 5));
              }}
            }}""",
            PATIENCE_S * 1000,
        )

    def ask(self, expression: str) -> Any:
        return self.page.evaluate(f"import('/page/main.js').then(({{ listener }}) => {expression})")

    def until_heard(self) -> None:
        expect(self.page.get_by_role("button", name="Play again")).to_be_visible()

    @property
    def pcm(self) -> bytes:
        """All sound that the page has of the job."""
        return base64.b64decode(self.page.evaluate("ear.pcm()"))

    @property
    def starts(self) -> list[tuple[int, int]]:
        """(frame, frames) of each piece that was scheduled; raises AssertionError where one is not on a frame."""
        pieces = [
            (round(piece["when"]), piece["samples"], piece["when"])
            for piece in self.page.evaluate("starts.map(({ when, samples }) => ({ when, samples }))")
        ]
        assert all(abs(exact - frame) < 1e-3 for frame, _, exact in pieces)
        return [(frame, samples) for frame, samples, _ in pieces]

    def heard(self) -> bytes:
        """What came out where it was scheduled; raises AssertionError where more came out."""
        self.until("ear.whole")
        heard = self.page.evaluate("ear.heard()")
        assert heard["strays"] == 0
        return base64.b64decode(heard["sound"])


def seams(starts: list[tuple[int, int]]) -> list[int]:
    """Frames of silence between each piece and the next; negative where two sound at once."""
    return [frame - (before + samples) for (before, samples), (frame, _) in pairwise(starts)]
