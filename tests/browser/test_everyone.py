"""For everyone: by keys alone, by ear, on a narrow screen, with nothing from elsewhere."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# Roles that a person acts on or is told of, and that say nothing without a name.
NAMED = {"button", "link", "textbox", "combobox", "slider", "image", "region"}
# Texts that stand out less than 4.5 to 1 from what is behind them, as WCAG 2 reckons it.
FAINT = """() => {
  const ink = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    for (const colour of colours) { ink.fillStyle = colour; ink.fillRect(0, 0, 1, 1); }
    return [...ink.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb
    .map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const faint = [];
  for (const one of document.body.querySelectorAll("*")) {
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !one.checkVisibility() || one.closest(":disabled, svg")) continue;
    const behind = [];
    for (let at = one; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const [a, b] = [light(over(behind)), light(over([...behind, getComputedStyle(one).color]))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(`${one.tagName} ${one.textContent.trim()}: ${ratio.toFixed(2)}`);
  }
  return faint;
}"""


def tab_to(page, name: str) -> None:
    """Press Tab until the control is focused, and seen to be."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == name:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    raise AssertionError(f"Tab never comes to {name}")


def shown(site, ear) -> str:
    """An open page with all that it can show: a completed job, the folds open."""
    job = site.submitted()
    site.player(job["id"]).play(5, 3)
    ear.open(site, job["id"])
    ear.page.get_by_label("Model").select_option("murmur")
    ear.until("listener.job?.ended && listener.job.log.length > 0")
    for fold in ear.page.locator("summary").all():
        fold.click()
    expect(ear.page.locator("#log tr")).not_to_have_count(0)
    return job["id"]


def voices_shown(site, ear) -> None:
    """The dialog of one's own voices, with all that it can show."""
    sound = io.BytesIO()
    soundfile.write(sound, np.sin(np.arange(24_000) / 20), 24_000, format="WAV")
    form = {"name": "a" * 64, "consent": "b" * 200, "ref_text": "She sells sea shells."}
    site.http.post("/v1/audio/voices", data=form, files={"audio_sample": sound.getvalue()}).raise_for_status()
    page = ear.page
    ear.open(site)
    page.get_by_label("Model").select_option("parrot")
    page.get_by_role("button", name="Your voices").click()
    page.get_by_role("button", name="Delete").click()
    page.locator("#upload-sample").set_input_files(
        {"name": "a.wav", "mimeType": "audio/wav", "buffer": sound.getvalue()}
    )
    expect(page.get_by_label("The recording")).to_be_visible()
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#upload-name-error")).to_contain_text("name is missing")


def test_by_keys_alone(site, ear):
    page = ear.page
    ear.open(site)
    tab_to(page, "input")
    page.keyboard.type("la la")
    page.keyboard.press("Control+Enter")
    player = site.player(ear.opened())
    player.admit(seed=1)
    player.sound(9)
    expect(page.locator("#play")).to_have_text("Pause")
    tab_to(page, "play")
    page.keyboard.press("Space")
    ear.until("listener.playback.state === 'paused'")
    expect(page.locator("#play")).to_have_text("Play")
    tab_to(page, "stop")
    page.keyboard.press("Enter")
    ear.until("listener.playback.position === 0")
    tab_to(page, "cancel")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("Cancelled")


def roles(page) -> set[str]:
    """The roles of `NAMED` that are there; raises AssertionError where one has no name."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    seen, nameless = set(), []
    for node in tree["nodes"]:
        role = node.get("role", {}).get("value")
        if node["ignored"] or role not in NAMED:
            continue
        seen.add(role)
        if not node.get("name", {}).get("value", "").strip():
            nameless.append((role, node))
    assert not nameless
    return seen


def test_every_control_has_a_name(site, ear):
    shown(site, ear)
    assert roles(ear.page) == NAMED
    voices_shown(site, ear)
    assert {"button", "textbox"} <= roles(ear.page)


def test_states_are_told_and_ids_are_single(site, ear):
    shown(site, ear)
    page = ear.page
    expect(page.locator("#state[role=status]")).to_have_text("Completed")
    assert page.locator("#away[role=status]").count() == page.locator("h1").count() == 1
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(({ id }) => id)")
    assert len(ids) == len(set(ids))
    missing = page.evaluate(
        """[...document.querySelectorAll("[aria-describedby], [aria-labelledby], label[for]")]
          .flatMap((one) => (one.getAttribute("aria-describedby") ?? one.getAttribute("aria-labelledby") ?? one.htmlFor)
            .split(" "))
          .filter((id) => !document.getElementById(id))"""
    )
    assert missing == []


def test_text_stands_out_in_light_and_in_dark(site, ear):
    ear.page.emulate_media(reduced_motion="reduce")  # no colour is on its way to another
    shown(site, ear)
    ear.page.get_by_role("button", name="Speak").hover()
    for scheme in ("light", "dark"):
        ear.page.emulate_media(color_scheme=scheme)
        assert ear.page.evaluate(FAINT) == []
    voices_shown(site, ear)
    for scheme in ("light", "dark"):
        ear.page.emulate_media(color_scheme=scheme)
        assert ear.page.evaluate(FAINT) == []


def test_a_phone_is_wide_enough(site, ear):
    ear.page.set_viewport_size({"width": 360, "height": 740})
    shown(site, ear)
    assert ear.page.evaluate("document.documentElement.scrollWidth") == 360
    voices_shown(site, ear)
    dialog = ear.page.get_by_role("dialog", name="Your voices")
    assert dialog.bounding_box()["width"] <= 360
    assert dialog.evaluate("dialog => dialog.scrollWidth - dialog.clientWidth") == 0


def test_nothing_comes_from_elsewhere(site, ear):
    asked, said = [], []
    ear.page.on("request", lambda request: asked.append(request.url))
    ear.page.on("console", lambda message: said.append(message.text))
    shown(site, ear)
    assert asked and all(url.startswith((site.url, "blob:")) for url in asked)
    with pytest.raises(Exception, match="violates the following Content Security Policy"):
        ear.page.add_script_tag(url="http://127.0.0.2:9/elsewhere.js")
    assert [text for text in said if "Content Security Policy" in text and "elsewhere" not in text] == []
