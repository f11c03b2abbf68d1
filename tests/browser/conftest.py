"""Chromium without a window; for each test a tab with a memory of its own."""

from __future__ import annotations

import shutil

import pytest

from tests.browser.site import serving
from tests.waiting import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", "--mute-audio"]


def pytest_collection_modifyitems(items):
    if CHROMIUM:
        return
    absent = pytest.mark.skip(reason="Chromium is not installed: apt-get install chromium (make test does it)")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(absent)


@pytest.fixture(scope="package")
def browser():
    # Closed with the folder: while it is open, its event loop is this thread's, and async tests could not run theirs.
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def site():
    with serving() as site:
        yield site


@pytest.fixture
def page(browser):
    """An empty tab, in which any error of the page's own fails the test."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def ear(page):
    from tests.browser.listening import Ear

    return Ear(page)
