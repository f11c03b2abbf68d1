"""The whole road, as a person has it: `songline up`, the page, a press, the sound."""

from __future__ import annotations

import hashlib

import httpx
import pytest
from playwright.sync_api import expect

from tests.compose.conftest import serving
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.browser


def test_a_press_is_heard_to_its_end(ear, tmp_path):
    page = ear.page
    with serving("up", "--model", "qwen3_tts", "--home", tmp_path) as (_, url):
        page.goto(url)
        expect(page.get_by_label("Model")).to_have_value("qwen3_tts")
        page.get_by_text("Seed and parameters").click()
        page.get_by_label("Seed").fill("7")
        page.get_by_label("Most frames").fill("25")
        job = ear.sing("The river wrote a letter to the sea.", button="Speak")
        ear.until_heard()
        expect(page.locator("#state")).to_have_text("Completed")
        pcm = httpx.get(f"{url}/v1/jobs/{job}/audio", params={"format": "pcm"}, timeout=PATIENCE_S).content
        assert hashlib.sha256(ear.pcm).hexdigest() == hashlib.sha256(pcm).hexdigest()
        assert 2 * sum(samples for _, samples in ear.starts) == len(pcm)
        expect(page.locator("#first-audio")).to_contain_text(" s")
