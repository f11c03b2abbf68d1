"""Voices of one's own: listed, uploaded or recorded, used by the next job, deleted."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import soundfile
from playwright.sync_api import expect

from tests.browser.site import serving

pytestmark = pytest.mark.browser

# In place of a microphone: a tone, on two channels.
MICROPHONE = """
  navigator.mediaDevices.getUserMedia = async () => {
    const context = (window.room = new AudioContext());
    const tone = new OscillatorNode(context, { frequency: 300 });
    const out = new MediaStreamAudioDestinationNode(context, { channelCount: 2 });
    tone.connect(out);
    tone.start();
    return (window.microphone = out.stream);
  };
"""
# One that a person does not lend.
REFUSED = """
  navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("no", "NotAllowedError"); };
"""

# `sent` is the newest upload.
SENT = """
  const send = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (body) { window.sent = this; send.call(this, body); };
"""


def recording(seconds: float = 1.0, rate: int = 24_000) -> dict:
    """A file to choose: a WAV of a tone."""
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(int(seconds * rate)) / 20), rate, format="WAV")
    return {"name": "ida.wav", "mimeType": "audio/wav", "buffer": file.getvalue()}


def upload(site, name: str, **fields: str) -> None:
    form = {"name": name, "consent": "Agreed on 2026-01-05."} | fields
    site.http.post("/v1/audio/voices", data=form, files={"audio_sample": recording()["buffer"]}).raise_for_status()


def uploaded(site) -> list[dict]:
    return [voice for voice in site.http.get("/v1/audio/voices").json()["data"] if voice["kind"] == "uploaded"]


def opened(site, ear, model: str = "parrot"):
    """The dialog, in a page that has the model chosen."""
    ear.open(site)
    ear.page.get_by_label("Model").select_option(model)
    ear.page.get_by_role("button", name="Your voices").click()
    dialog = ear.page.get_by_role("dialog", name="Your voices")
    expect(dialog).to_be_visible()
    return dialog


def filled(dialog, name: str = "ida", file: dict | None = None):
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Consent").fill("Ida agreed.")
    dialog.locator("#upload-sample").set_input_files(file or recording())
    return dialog.get_by_role("button", name="Upload")


def test_voices_are_offered_where_the_model_takes_them(site, ear):
    ear.open(site)
    own = ear.page.locator("#own-voices")
    for model, there in (("hum", False), ("murmur", False), ("parrot", True)):
        ear.page.get_by_label("Model").select_option(model)
        expect(own).to_be_visible(visible=there)


def test_an_upload_speaks_in_the_next_job(site, ear):
    dialog = opened(site, ear)
    expect(dialog.get_by_role("status")).to_have_text("You have none yet.")
    send = filled(dialog)
    dialog.get_by_label("What it says").fill("The river knows the way.")
    send.click()
    expect(dialog).to_be_hidden()
    [voice] = uploaded(site)
    assert (voice["name"], voice["consent"], voice["ref_text"]) == ("ida", "Ida agreed.", "The river knows the way.")
    chosen = ear.page.locator("#voice")
    expect(chosen).to_have_value("ida")
    expect(chosen).to_be_focused()
    expect(chosen).to_have_accessible_description("ida is kept, and speaks next.")
    assert site.job(ear.sing(button="Speak"))["voice"] == "ida"
    ear.page.get_by_role("button", name="Your voices").click()
    expect(dialog.locator("#voice-list li")).to_contain_text(["says “The river knows the way.”"])
    for field in ("Name", "Consent", "What it says", "Recording"):
        expect(dialog.get_by_label(field, exact=True)).to_have_value("")


def test_a_name_is_sent_as_it_is(site, ear):
    """An option without a value of its own has its text's, less the spaces that are one after another."""
    upload(site, "ida  b")
    dialog = opened(site, ear)
    dialog.get_by_role("button", name="Use").click()
    expect(ear.page.locator("#voice")).to_have_value("ida  b")
    assert site.job(ear.sing(button="Speak"))["voice"] == "ida  b"


def test_how_much_is_sent_is_told(site, ear):
    dialog, page = opened(site, ear), ear.page
    held = []
    page.route(
        "**/v1/audio/voices",
        lambda route, request: held.append(route) if request.method == "POST" else route.continue_(),
    )
    filled(dialog).click()
    progress = page.locator("#upload-progress")
    expect(progress).to_be_visible()
    expect(dialog.get_by_role("status")).to_have_text("The recording is being sent.")
    send = dialog.locator("#upload-send")
    expect(send).to_have_attribute("aria-busy", "true")
    send.click()  # changes nothing
    held[0].continue_()
    expect(dialog).to_be_hidden()
    expect(progress).to_have_attribute("hidden", "")
    assert progress.evaluate("bar => bar.value") == 1
    assert len(held) == len(uploaded(site)) == 1


def test_an_upload_that_broke_off_is_sent_again(site, ear):
    dialog, tries = opened(site, ear), []

    def breaks_once(route, request) -> None:
        tries.append(request.method)
        if tries.count("POST") == 1:
            route.abort("connectionreset")
        else:
            route.continue_()

    ear.page.route("**/v1/audio/voices", breaks_once)
    filled(dialog).click()
    expect(dialog).to_be_hidden()
    assert tries.count("POST") == 2 and len(uploaded(site)) == 1


def test_who_closes_the_dialog_sends_no_more(site, ear):
    ear.page.add_init_script(SENT)
    dialog, page = opened(site, ear), ear.page
    page.route("**/v1/audio/voices", lambda route, request: route.continue_() if request.method == "GET" else None)
    filled(dialog).click()
    expect(dialog.locator("#upload-progress")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    ear.until("sent.readyState === XMLHttpRequest.UNSENT")  # as abort leaves it
    page.get_by_role("button", name="Your voices").click()
    expect(dialog.locator("#upload-send")).not_to_have_attribute("aria-busy", "true")
    expect(dialog.locator("#upload-progress")).to_be_hidden()
    expect(dialog.locator("#upload-error")).to_be_empty()
    expect(dialog.get_by_label("Name")).to_have_value("ida")  # to be sent after all
    assert uploaded(site) == []


def test_what_is_wrong_is_said_in_the_api_s_words_beside_its_field(site, ear):
    upload(site, "ida")
    dialog = opened(site, ear)
    send = dialog.get_by_role("button", name="Upload")

    def refused(label: str, words: str) -> None:
        send.click()
        field = dialog.get_by_label(label, exact=True)
        expect(field).to_be_focused()
        expect(field).to_have_attribute("aria-invalid", "true")
        assert words in field.evaluate("field => document.getElementById(`${field.id}-error`).textContent")

    refused("Recording", "audio_sample is missing")
    dialog.locator("#upload-sample").set_input_files(recording(0.1))
    refused("Name", "name is missing")
    dialog.get_by_label("Name").fill("ida")
    refused("Consent", "consent is missing")
    dialog.get_by_label("Consent").fill("Another.")
    refused("Recording", "is 0.10 s long: send at least 0.5 s")
    dialog.locator("#upload-sample").set_input_files({"name": "a.wav", "mimeType": "audio/wav", "buffer": b"no sound"})
    expect(dialog.locator("#upload-sample-error")).to_be_empty()
    refused("Recording", "send WAV, FLAC, MP3 or OGG")
    dialog.locator("#upload-sample").set_input_files(recording(2))
    refused("Name", "You have another voice")
    assert len(uploaded(site)) == 1


def test_what_is_about_no_field_is_said_under_the_button(site, ear):
    dialog = opened(site, ear)
    error = {"message": "There is no room.", "type": "invalid_request_error", "param": None, "code": "voices_full"}
    ear.page.route("**/v1/audio/voices", lambda route: route.fulfill(status=409, json={"error": error}))
    filled(dialog).click()
    expect(dialog.get_by_role("alert")).to_have_text("There is no room.")
    expect(dialog.get_by_label("Name")).to_have_value("ida")
    expect(dialog.locator("#upload-send")).not_to_have_attribute("aria-busy", "true")


def test_a_file_that_the_api_would_not_hear_to_its_end_is_not_sent(site, ear):
    dialog = opened(site, ear)
    ear.page.locator("#upload-sample").evaluate(
        """(field) => {
          const files = new DataTransfer();
          files.items.add(new File([new Uint8Array((40 << 20) + 1)], "long.wav"));
          field.files = files.files;
        }"""
    )
    dialog.get_by_role("button", name="Upload").click()
    expect(dialog.locator("#upload-sample-error")).to_contain_text("has 41 MiB")


def test_a_voice_is_used_by_keys_alone(site, ear):
    for name in ("ada", "bo", "cy"):
        upload(site, name)
    page = ear.page
    ear.open(site)
    page.get_by_label("Model").select_option("parrot")
    expect(page.locator("#voice")).to_have_value("ada")
    page.locator("#own-voices").press("Enter")
    expect(page.locator("#voice-list li")).to_have_count(3)
    expect(page.locator("#voices-title")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Use bo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#voices")).to_be_hidden()
    expect(page.locator("#voice")).to_have_value("bo")
    expect(page.locator("#voice")).to_be_focused()
    page.reload()
    expect(page.locator("#voice")).to_have_value("bo")
    page.locator("#own-voices").press("Enter")
    expect(page.locator("#voices")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#voices")).to_be_hidden()
    expect(page.locator("#own-voices")).to_be_focused()


def test_a_voice_is_deleted_at_the_second_press(site, ear):
    for name in ("ida", "bo.b - 2"):
        upload(site, name)
    dialog = opened(site, ear)
    expect(dialog.get_by_role("status")).to_have_text("")  # there before it says anything: else nobody hears it
    dialog.get_by_role("button", name="Delete bo.b - 2").click()
    expect(dialog.get_by_role("status")).to_contain_text("Press again to delete bo.b - 2")
    dialog.get_by_label("Name").focus()
    expect(dialog.get_by_role("button", name="Really")).to_have_count(0)  # who goes on has not meant it
    assert len(uploaded(site)) == 2
    dialog.get_by_role("button", name="Delete bo.b - 2").click()
    dialog.get_by_role("button", name="Really delete bo.b - 2").click()
    expect(dialog.get_by_role("status")).to_have_text("bo.b - 2 is deleted.")
    expect(dialog.locator("#voice-list li")).to_have_count(1)
    assert [voice["name"] for voice in uploaded(site)] == ["ida"]
    assert ear.page.locator("#voice option").all_text_contents() == ["ida"]
    site.http.delete("/v1/audio/voices/ida").raise_for_status()  # elsewhere, meanwhile
    dialog.get_by_role("button", name="Delete ida").click()
    dialog.get_by_role("button", name="Really delete ida").click()
    expect(dialog.get_by_role("status")).to_have_text("ida is deleted.")


def test_a_recording_by_the_microphone_becomes_a_voice(site, ear):
    ear.page.add_init_script(MICROPHONE)
    dialog = opened(site, ear)
    dialog.get_by_role("button", name="Record", exact=True).click()
    ear.until("room.currentTime > 2")
    expect(dialog.locator("#recorded")).to_have_text(re.compile(r"^\d+ s$"))
    dialog.get_by_role("button", name="Stop recording").click()
    expect(dialog.get_by_role("status")).to_contain_text("The recording is there")
    ear.until("microphone.getTracks().every(({ readyState }) => readyState === 'ended')")
    expect(dialog.get_by_label("The recording")).to_be_visible()
    ear.until("document.getElementById('sample-heard').duration > 0.5")
    assert dialog.locator("#upload-sample").evaluate("field => field.files[0].name") == "recording.wav"
    dialog.get_by_label("Name").fill("me")
    dialog.get_by_label("Consent").fill("It is I.")
    dialog.get_by_role("button", name="Upload").click()
    expect(dialog).to_be_hidden()
    [voice] = uploaded(site)
    assert (voice["name"], voice["sample_rate"]) == ("me", 48_000)
    assert voice["bytes"] == 44 + 2 * round(48_000 * voice["seconds"])
    expect(ear.page.locator("#voice")).to_have_value("me")


def test_a_dialog_that_is_closed_records_no_more(site, ear):
    ear.page.add_init_script(MICROPHONE)
    dialog = opened(site, ear)
    dialog.get_by_role("button", name="Record", exact=True).click()
    expect(dialog.get_by_role("button", name="Stop recording")).to_be_visible()
    ear.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    ear.until("microphone.getTracks().every(({ readyState }) => readyState === 'ended')")
    ear.page.get_by_role("button", name="Your voices").click()
    expect(dialog.get_by_role("button", name="Record", exact=True)).to_be_visible()


def test_a_microphone_that_is_not_lent_is_told_of(site, ear):
    ear.page.add_init_script(REFUSED)
    dialog = opened(site, ear)
    dialog.get_by_role("button", name="Record", exact=True).click()
    expect(dialog.locator("#upload-sample-error")).to_contain_text("not allowed to this page")
    expect(dialog.get_by_role("button", name="Record", exact=True)).not_to_have_attribute("aria-busy", "true")


def test_an_upload_takes_the_key(ear):
    with serving(api_keys=("right",)) as site:
        ear.open(site)
        ear.page.locator("#key").fill("right")
        ear.page.keyboard.press("Enter")
        ear.page.get_by_label("Model").select_option("parrot")
        ear.page.get_by_role("button", name="Your voices").click()
        dialog = ear.page.get_by_role("dialog", name="Your voices")
        filled(dialog).click()
        expect(ear.page.locator("#voice")).to_have_value("ida")
