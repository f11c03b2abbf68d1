"""The whole road, with a real model at its tiny size: the page, a press, both stages, the sound."""

from __future__ import annotations

import hashlib

import pytest
from playwright.sync_api import expect

from compose.broker import EmbeddedBroker
from tests.browser.site import serving
from tests.crew import acoustic_worker, talker_worker
from tests.stand_ins import running
from tests.tiny_checkpoint import tiny_checkpoint
from tests.utterances import MODEL, contract
from workers.run import load_acoustic, load_talker
from workers.settings import load

pytestmark = pytest.mark.browser


@pytest.mark.usefixtures("one_thread")
def test_a_press_is_heard_to_its_end(ear):
    page, broker = ear.page, EmbeddedBroker()
    settings = load(MODEL, tiny_checkpoint(MODEL), overrides={"talker": {"max_jobs": 2}}, platform="cpu")
    workers = (
        talker_worker(broker, settings, load_talker(settings)),
        acoustic_worker(broker, settings, load_acoustic(settings)),
    )
    with serving(broker, contracts=[contract()]) as site, running(*workers):
        ear.open(site)
        expect(page.get_by_label("Model")).to_have_value(MODEL)
        page.get_by_label("Voice", exact=True).select_option("vivian")
        page.get_by_text("Seed and parameters").click()
        page.get_by_label("Seed").fill("7")
        page.get_by_label("Most frames").fill("25")
        job = ear.sing("The river wrote a letter to the sea.", button="Speak")
        ear.until_heard()
        expect(page.locator("#state")).to_have_text("Completed")
        pcm = site.pcm(job)
        assert hashlib.sha256(ear.pcm).hexdigest() == hashlib.sha256(pcm).hexdigest()
        assert 2 * sum(samples for _, samples in ear.starts) == len(pcm) > 0
        expect(page.locator("#first-audio")).to_contain_text(" s")
