"""A job's sound in the page: while it is made, afterwards, after a reload, after the server was away."""

from __future__ import annotations

import hashlib

import pytest
from playwright.sync_api import expect

from compose.broker import EmbeddedBroker
from tests.api.player import SAMPLES, song
from tests.browser.listening import seams
from tests.browser.site import serving

pytestmark = pytest.mark.browser

# A browser that lets nothing sound before a person has pressed something. Chromium's own flag for it does not do: what
# Playwright evaluates counts as a press.
STRICT = """
  let pressed = false;
  addEventListener("pointerdown", () => (pressed = true), true);
  window.AudioContext = class extends AudioContext {
    constructor(options) { super(options); super.suspend(); }
    resume() { return pressed ? super.resume() : new Promise(() => {}); }
  };
"""


def sha256(pcm: bytes) -> str:
    return hashlib.sha256(pcm).hexdigest()


def finished(site, windows: int = 6, **fields) -> str:
    job = site.submitted(**fields)
    site.player(job["id"]).play(job["seed"], windows)
    return job["id"]


def test_what_is_heard_is_the_jobs_sound_without_a_seam(site, ear):
    job = finished(site)
    ear.open(site, job)
    ear.listen()
    ear.page.get_by_role("button", name="Play").click()
    ear.until_heard()
    assert ear.heard() == site.pcm(job)
    assert seams(ear.starts) == [0] * 5


def test_it_sounds_while_it_is_made(site, ear):
    ear.open(site)
    job = ear.sing()
    player = site.player(job)
    player.admit(seed=site.job(job)["seed"])
    ear.listen()
    expect(ear.page.locator("#jobs a")).to_have_count(1)
    player.sound(3)
    ear.until("ear.loud")
    assert site.job(job)["status"] == "sounding"
    expect(ear.page.locator("#state")).to_have_text("Being made")
    assert "sounding" in ear.page.locator("#jobs a").inner_text()  # the list knows what the panel knows
    player.sound(3, last=True)
    player.complete()
    ear.until_heard()
    expect(ear.page.locator("#state")).to_have_text("Completed")
    assert ear.heard() == ear.pcm == site.pcm(job)
    assert min(seams(ear.starts)) >= 0
    assert sum(samples for _, samples in ear.starts) == site.job(job)["samples"] == 6 * SAMPLES


def test_what_is_made_before_the_page_looks_is_heard_too(site, ear):
    def finish(route) -> None:
        site.player(ear.opened()).play(5, 3)
        route.continue_()

    ear.open(site)
    ear.page.route("**/v1/jobs/job_*", finish, times=1)
    job = ear.sing()
    ear.until_heard()
    assert sum(samples for _, samples in ear.starts) == site.job(job)["samples"] == 3 * SAMPLES


def test_where_sound_waits_for_a_press_the_page_says_so(site, ear):
    ear.page.add_init_script(STRICT)
    job = site.submitted()
    player = site.player(job["id"])
    player.admit(seed=5)
    player.sound(3)
    ear.open(site, job["id"])
    expect(ear.page.locator("#state")).to_have_text("Being made. Press Play to hear it")
    ear.page.get_by_role("button", name="Play").click()
    expect(ear.page.locator("#state")).to_have_text("Being made")
    player.sound(1, last=True)
    player.complete()
    ear.until_heard()


def test_a_reload_in_the_middle_begins_at_the_beginning(site, ear):
    ear.open(site)
    job = ear.sing()
    player = site.player(job)
    player.admit(seed=site.job(job)["seed"])
    player.sound(3)
    ear.until("listener.job?.chunks.length === 3")
    ear.page.reload()
    ear.until("listener.job?.chunks.length === 3")
    player.sound(3, last=True)
    player.complete()
    ear.until_heard()
    assert sha256(ear.pcm) == sha256(site.pcm(job))
    assert sum(samples for _, samples in ear.starts) == 6 * SAMPLES
    assert min(seams(ear.starts)) >= 0


def test_a_server_that_was_away_costs_no_sound(ear):
    broker = EmbeddedBroker()
    away = ear.page.locator("#away")
    with serving(broker) as site:
        ear.open(site)
        job = ear.sing()
        player = site.player(job)
        player.admit(seed=site.job(job)["seed"])
        player.sound(2)
        ear.until("listener.job?.chunks.length === 2")
    expect(away).to_contain_text("is away")
    ear.page.locator("#input").fill("what was typed meanwhile")
    player.sound(4, last=True)
    player.complete()
    with serving(broker, int(site.url.rpartition(":")[2])) as site:
        with ear.page.expect_request(lambda asked: "/stream" in asked.url and asked.response()) as again:
            ear.page.get_by_role("button", name="Try now").click()
        assert again.value.headers["last-event-id"] == "1"
        ear.until_heard()
        expect(away).to_be_empty()
        assert sha256(ear.pcm) == sha256(site.pcm(job))
        assert sum(samples for _, samples in ear.starts) == 6 * SAMPLES
    expect(ear.page.locator("#input")).to_have_value("what was typed meanwhile")


def test_a_chunk_that_comes_twice_sounds_once(site, ear):
    job = finished(site)
    head, *events = site.http.get(f"/v1/jobs/{job}/stream").text.split("\n\n")
    told = "\n\n".join([head, events[0], *events])
    ear.page.route("**/stream?*", lambda route: route.fulfill(body=told, content_type="text/event-stream"))
    ear.open(site, job)
    ear.until("listener.playback?.samples > 0 && listener.playback.state === 'paused' && listener.job.ended")
    assert ear.pcm == site.pcm(job)


def test_a_request_that_found_the_server_away_is_sent_once_it_is_back(ear):
    broker = EmbeddedBroker()
    with serving(broker) as site:
        ear.open(site)
        expect(ear.page.locator("#model")).to_have_value("hum")
    ear.page.locator("#input").fill("la la")
    ear.page.get_by_role("button", name="Sing").click()
    expect(ear.page.locator("#away")).to_contain_text("is away")
    with serving(broker, int(site.url.rpartition(":")[2])) as site:
        ear.page.get_by_role("button", name="Try now").click()
        job = ear.opened()
        assert [listed["id"] for listed in site.jobs()] == [job]


def test_a_request_whose_answer_was_lost_makes_one_job(site, ear):
    def lose(route) -> None:
        route.fetch()
        route.abort()

    ear.open(site)
    ear.page.route("**/v1/jobs", lose, times=1)
    ear.page.locator("#input").fill("la la")
    ear.page.get_by_role("button", name="Sing").click()
    ear.page.get_by_role("button", name="Try now").click()
    job = ear.opened()
    assert [listed["id"] for listed in site.jobs()] == [job]


def test_pause_stop_and_play_again(site, ear):
    job = finished(site, windows=110)
    ear.open(site, job)
    button = ear.page.get_by_role
    button("button", name="Play").click()
    ear.until("listener.playback.position > 0")
    button("button", name="Pause").click()
    ear.until("listener.playback.context.state === 'suspended'")
    assert ear.ask("listener.playback.state") == "paused"
    button("button", name="Stop").click()
    assert ear.ask("listener.playback.position") == 0
    ear.page.get_by_label("Position").focus()
    ear.page.keyboard.press("End")
    button("button", name="Play again").click()
    ear.until("listener.playback.position > 0")
    assert ear.ask("listener.playback.state") == "playing"
    # So long a song is not laid out as a whole.
    assert ear.ask("listener.playback.position") < 50 * SAMPLES
    assert sum(samples for _, samples in ear.starts) < 110 * SAMPLES


def test_a_seek_goes_on_at_the_sample(site, ear):
    job = finished(site)
    ear.open(site, job)
    ear.listen()
    ear.ask(f"listener.playback.seek({3 * SAMPLES + 17})")
    ear.page.get_by_role("button", name="Play").click()
    ear.until_heard()
    assert ear.heard() == song(5, 6)[4 * (3 * SAMPLES + 17) :]


def test_a_job_is_cancelled(site, ear):
    ear.open(site)
    job = ear.sing()
    player = site.player(job)
    player.admit(seed=1)
    player.sound(2)
    ear.until("listener.job?.chunks.length === 2")
    ear.page.get_by_role("button", name="Cancel the job").click()
    expect(ear.page.locator("#state")).to_have_text("Cancelled")
    assert site.job(job)["status"] == "cancelled"
    expect(ear.page.locator("#cancel")).to_be_hidden()
    expect(ear.page.locator("#jobs a")).to_contain_text("cancelled")


def test_a_job_that_fails_says_why(site, ear):
    ear.open(site)
    player = site.player(ear.sing())
    player.admit(seed=1)
    player.fail()
    expect(ear.page.locator("#state")).to_have_text("Failed: The song has no frames.")


def test_the_files_are_the_apis(site, ear):
    job = finished(site)
    ear.open(site, job)
    for format_ in ("wav", "flac", "mp3", "opus"):
        with ear.page.expect_download() as coming:
            ear.page.locator(f"[data-format={format_}]").click()
        answer = site.http.get(f"/v1/jobs/{job}/audio", params={"format": format_})
        assert coming.value.path().read_bytes() == answer.content
        assert coming.value.suggested_filename == f"{job}.{format_}"
