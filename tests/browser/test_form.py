"""Writing and asking: fields that fit the model, errors beside them, the list, the key."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from playwright.sync_api import expect

from tests.browser.site import serving

pytestmark = pytest.mark.browser

# Counts how often a dialog is opened.
ASKED = """
  window.asked = 0;
  const show = HTMLDialogElement.prototype.showModal;
  HTMLDialogElement.prototype.showModal = function () { window.asked++; show.call(this); };
"""


def upload_voice(site) -> None:
    recording = io.BytesIO()
    soundfile.write(recording, np.sin(np.arange(24_000) / 20), 24_000, format="WAV")
    form = {"name": "ida", "consent": "Ida agreed."}
    site.http.post("/v1/audio/voices", data=form, files={"audio_sample": recording.getvalue()}).raise_for_status()


def test_a_request_says_what_was_chosen(site, ear):
    page = ear.page
    ear.open(site)
    page.get_by_label("Model").select_option("murmur")
    page.get_by_label("Voice", exact=True).select_option("ben")
    page.get_by_text("Seed and parameters").click()
    page.get_by_label("Seed").fill("9223372036854775807")  # more than a number of JavaScript holds
    page.get_by_label("Most frames").fill("300")
    page.get_by_label("How it should sound").fill("softly")
    job = site.job(ear.sing("mm mm", button="Speak"))
    assert (job["model"], job["input"], job["seed"]) == ("murmur", "mm mm", 9223372036854775807)
    assert job["params"] == {"instructions": "softly", "max_new_tokens": 300, "voice": "ben"}
    expect(page.locator("#facts")).to_contain_text("9223372036854775807")


def test_the_fields_are_the_models(site, ear):
    ear.open(site)
    voice = ear.page.locator("#voice")
    expect(ear.page.get_by_role("button", name="Sing", exact=True)).to_be_visible()
    expect(voice).to_be_hidden()
    ear.page.get_by_label("Model").select_option("murmur")
    expect(ear.page.get_by_role("button", name="Speak", exact=True)).to_be_visible()
    assert voice.locator("option").all_text_contents() == ["anna", "ben"]


def test_settings_are_those_that_the_model_has(site, ear):
    page = ear.page
    ear.open(site)
    settings = page.locator("#parameters")
    common = ["max_new_tokens", "seed"]
    spoken = [*common, "language", "temperature"]
    cloned = [*spoken, "top_k", "repetition_penalty", "do_sample", "async_chunk"]
    for model, has in (("hum", common), ("murmur", spoken), ("parrot", cloned)):
        page.get_by_label("Model").select_option(model)
        expect(settings.locator("input:visible")).to_have_count(0)  # closed
        page.get_by_text("Seed and parameters").click()
        shown = settings.locator(":is(input, select):visible").evaluate_all("all => all.map(({ name }) => name)")
        assert sorted(shown) == sorted(has)
        page.get_by_text("Seed and parameters").click()


def test_settings_are_sent_as_what_they_are(site, ear):
    upload_voice(site)
    page = ear.page
    ear.open(site)
    page.get_by_label("Model").select_option("parrot")
    page.get_by_text("Seed and parameters").click()
    page.locator("#repetition_penalty").fill("1.25")
    page.locator("#top_k").fill("40")
    page.locator("#do_sample").select_option(label="the likeliest")
    page.locator("#async_chunk").select_option(label="while it is made")
    params = site.job(ear.sing(button="Speak"))["params"]
    assert {name: params.get(name) for name in ("repetition_penalty", "top_k", "do_sample", "async_chunk")} == {
        "repetition_penalty": 1.25, "top_k": 40, "do_sample": False, "async_chunk": True,
    }  # fmt: skip
    page.locator("#do_sample").select_option("")
    page.locator("#top_k").fill("9")
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#top_k-error")).to_have_text("top_k must be another number.")
    page.locator("#top_k").fill("")
    with page.expect_request("**/v1/jobs") as sent:
        page.get_by_role("button", name="Speak").click()
    assert sent.value.post_data_json.keys() == {"model", "input", "voice", "repetition_penalty", "async_chunk"}


def test_an_uploaded_voice_can_be_chosen(site, ear):
    ear.open(site)
    ear.page.get_by_label("Model").select_option("parrot")
    expect(ear.page.locator("#voice-hint")).to_contain_text("upload one")
    upload_voice(site)
    ear.page.reload()
    expect(ear.page.locator("#voice")).to_have_value("ida")
    expect(ear.page.locator("#voice-hint")).to_be_empty()
    assert site.job(ear.sing(button="Speak"))["voice"] == "ida"


def test_what_is_wrong_is_said_beside_its_field(site, ear):
    page = ear.page
    ear.open(site)
    page.get_by_label("Model").select_option("murmur")
    page.locator("#input").fill("  two lines\nof text")
    fold = page.get_by_text("Seed and parameters")
    for name, typed in (("temperature", "warm"), ("max_new_tokens", "0"), ("seed", "-1")):
        fold.click()
        field, error = page.locator(f"#{name}"), page.locator(f"#{name}-error")
        field.fill(typed)
        fold.click()
        expect(field).to_be_hidden()
        page.get_by_role("button", name="Speak").click()
        expect(error).to_contain_text(f"{name} must be")
        expect(field).to_be_focused()
        expect(field).to_have_attribute("aria-invalid", "true")
        assert f"{name}-error" in field.get_attribute("aria-describedby").split()
        assert (field.input_value(), page.locator("#input").input_value()) == (typed, "  two lines\nof text")
        field.fill("")
        expect(error).to_be_empty()
        fold.click()
    page.get_by_role("button", name="Speak").click()
    assert site.job(ear.opened())["input"] == "  two lines\nof text"


def test_an_error_about_no_field_is_said_under_the_button(site, ear):
    ear.open(site)
    error = {"message": "The queue is full.", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    ear.page.route(
        "**/v1/jobs",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "7"}, json={"error": error}),
    )
    ear.page.locator("#input").fill("la")
    ear.page.get_by_role("button", name="Sing").click()
    expect(ear.page.locator("#form-error")).to_have_text("The queue is full. Try again in 7 s.")


def test_what_was_typed_outlives_a_reload(site, ear):
    ear.open(site)
    ear.page.get_by_label("Model").select_option("murmur")
    ear.page.get_by_label("Voice", exact=True).select_option("ben")
    ear.page.locator("#input").fill("half a though")
    ear.page.reload()
    expect(ear.page.locator("#input")).to_have_value("half a though")
    expect(ear.page.locator("#voice")).to_have_value("ben")


def test_the_list_opens_jobs(site, ear):
    jobs = [site.submitted(input=f"song {i}") for i in range(12)]
    site.player(jobs[11]["id"]).play(5, 2)
    ear.open(site)
    listed = ear.page.locator("#jobs a")
    expect(listed).to_have_count(10)
    expect(listed.first).to_contain_text("completed")
    expect(listed.nth(1)).to_contain_text("queued")
    ear.page.get_by_role("button", name="Show more").click()
    expect(listed).to_have_count(12)
    listed.first.click()
    expect(ear.page.locator("#words")).to_have_text("song 11")
    expect(ear.page.locator("#listen-title")).to_be_focused()
    expect(ear.page.locator("#so-far")).to_have_text("0.25 s")
    expect(ear.page.locator("#timeline rect.decoded")).to_have_count(2)
    ear.page.go_back()
    expect(ear.page.locator("#opened")).to_be_hidden()


def test_a_link_to_no_job_says_so(site, ear):
    ear.open(site, "job_" + "a" * 32)
    expect(ear.page.locator("#listen-error")).to_contain_text("There is no job")


def test_the_key_is_asked_for_once(ear):
    with serving(api_keys=("right",)) as site:
        dialog, page = ear.page.get_by_role("dialog"), ear.page
        page.add_init_script(ASKED)
        ear.open(site)
        expect(dialog).to_be_visible()
        page.locator("#key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-error")).to_contain_text("not known here")
        page.locator("#key").fill("right")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Model")).to_have_value("hum")
        expect(dialog).to_be_hidden()
        assert page.evaluate("asked") == 2  # however many calls were refused
        page.reload()
        expect(page.get_by_label("Model")).to_have_value("hum")
        ear.sing()
        expect(page.locator("#state")).to_contain_text("Waiting for its turn")
        expect(dialog).to_be_hidden()
        assert page.evaluate("[asked, localStorage.length, document.cookie]") == [0, 0, ""]
