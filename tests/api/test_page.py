"""The page's files: what is served, to whom, and what a browser is told about them."""

from __future__ import annotations

import re
from pathlib import Path

import api.page
from tests.api.conftest import serving

FOLDER = Path(api.page.__file__).parent
DOCUMENTS = {"/": "index.html", "/pipeline": "pipeline.html"}


async def test_the_page_is_at_the_root_and_needs_no_key(redis_api, real_broker):
    async with serving(real_broker, api_keys=("secret",)) as closed:
        for one in (redis_api, closed):
            answer = await one.http.get("/")
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert answer.text.startswith("<!doctype html>")
        assert (await closed.http.get("/v1/models")).status_code == 401


async def test_all_that_the_page_names_is_there(redis_api):
    """Whatever a document or module imports, and nothing that is no part of the pages."""
    wanted, seen = set(DOCUMENTS), set()
    while wanted:
        path = wanted.pop()
        seen.add(path)
        answer = await redis_api.http.get(path)
        assert answer.status_code == 200, path
        wanted |= {f"/page/{name}" for name in re.findall(r'"(?:/page|\.)/([\w.-]+)"', answer.text)} - seen
    parts = {path.name for path in FOLDER.iterdir() if path.suffix not in ("", ".py")}
    assert seen == DOCUMENTS.keys() | {f"/page/{name}" for name in parts - set(DOCUMENTS.values())}
    for path in ("/page/__init__.py", "/page/none.js", "/page/..%2fapp.py", "/page/"):
        assert (await redis_api.http.get(path)).status_code == 404


async def test_a_browser_loads_nothing_from_elsewhere(redis_api):
    for path in (*DOCUMENTS, "/page/main.js"):
        answer = await redis_api.http.get(path)
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy.pop("media-src") == "blob:"  # what a person has just chosen or recorded
        assert set(policy.values()) == {"'none'", "'self'"}
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_file_that_is_known_is_not_sent_again(redis_api):
    first = await redis_api.http.get("/page/main.js")
    known = {"If-None-Match": first.headers["etag"]}
    again = await redis_api.http.get("/page/main.js", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert (await redis_api.http.get("/page/job.js", headers=known)).status_code == 200
    assert (await redis_api.http.head("/")).status_code == 200


async def test_the_docs_tell_of_the_api_alone(redis_api):
    paths = (await redis_api.http.get("/openapi.json")).json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/page")]
    assert (await redis_api.http.get("/docs")).status_code == 200
