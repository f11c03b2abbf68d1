"""docs/qwen3-tts.md says what the code does: parameters, defaults, limits, chunks, deploy files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_schemas.contract import BadField
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.contract import SpeechContract
from workers.settings import load

PAGE = (Path(__file__).parents[2] / "docs" / "qwen3-tts.md").read_text()
PARAMETERS = re.search(r"^## Parameters$(.+?)^## ", PAGE, re.MULTILINE | re.DOTALL)[1]
ROWS = {
    field: (default, allowed)
    for field, default, allowed in re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.+?) \| .*\|$", PARAMETERS, re.MULTILINE)
}
REFUSED = {"speed", "extra_params"}  # in a table of their own
IN_WORDS = {
    "task_type", "voice", "instructions", "max_new_tokens", "ref_audio", "ref_text", "x_vector_only_mode"
}  # fmt: skip
BODY = {"model": "qwen3_tts", "input": "Hello, world."}


@pytest.fixture(scope="module")
def contract():
    return SpeechContract(tiny_checkpoint("qwen3_tts"))


def is_taken(contract, field, value) -> bool:
    try:
        contract.accept(BODY | {field: value})
    except BadField as refused:
        assert refused.field == field
        return False
    return True


def test_every_parameter_has_a_row():
    assert ROWS.keys() == SpeechContract.fields - REFUSED
    assert all(f"| `{field}` |" in PAGE for field in REFUSED)


def test_defaults(contract):
    params = contract.accept(BODY).params
    told = {field: default for field, (default, _) in ROWS.items() if field not in IN_WORDS}
    shown = {field: str(value).lower() if isinstance(value, bool) else str(value) for field, value in params.items()}
    assert told == {field: f"`{shown[field]}`" for field in told}


def test_the_frames_that_a_text_may_take(contract):
    spare, each = map(int, re.search(r"by default (\d+) and (\d+) for each token", PARAMETERS).groups())
    order = contract.accept(BODY | {"input": "one two three"})
    assert order.max_frames == spare + each * 3


@pytest.mark.parametrize("field", [field for field, (_, allowed) in ROWS.items() if re.search(r"\d", allowed)])
def test_limits(contract, field):
    allowed = ROWS[field][1].replace(",", "")
    if found := re.fullmatch(r"above 0 to ([\d.]+)", allowed):
        most = float(found[1])
        taken, refused = (most, most / 1000), (0, most * 1.01)
    elif found := re.fullmatch(r"to (\d+) characters", allowed):
        taken, refused = ("a" * int(found[1]),), ("a" * (int(found[1]) + 1),)
    elif found := re.fullmatch(r"(\d+) to (\d+)", allowed):
        least, most = map(int, found.groups())
        taken, refused = (least, most), (least - 1, most + 1)
    else:
        assert (field, allowed) == ("max_new_tokens", "1 to what fits")
        taken, refused = (1,), (0, 1 << 20)
    assert all(is_taken(contract, field, value) for value in taken)
    assert not any(is_taken(contract, field, value) for value in refused)


def test_the_longest_input(contract):
    [most] = re.findall(r"over ([\d,]+) characters", PAGE)
    assert int(most.replace(",", "")) == config.MAX_INPUT_CHARS


def test_chunks():
    ramp = [int(frames) for frames in re.search(r"25:\s+((?:\d+,\s+)+\d+) …", PAGE)[1].split(",")]
    plan = config.plan()
    assert ramp == [plan.frames_of(index) for index in range(len(ramp))]


@pytest.mark.parametrize("name", ["qwen3_tts", "qwen3_tts_high_concurrency", "qwen3_tts_2gpu"])
def test_deploy_files(name):
    [jobs] = re.findall(rf"^\| `{name}` \| (\d+) ", PAGE, re.MULTILINE)
    assert load(name, tiny_checkpoint("qwen3_tts"), platform="cuda").talker.max_jobs == int(jobs)
    positions = re.search(r"all\s+([\d,]+)\s+positions", PAGE)[1].replace(",", "")
    assert load(name, tiny_checkpoint("qwen3_tts")).talker.max_model_len == int(positions)
