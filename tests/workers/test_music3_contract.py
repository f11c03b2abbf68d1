"""What the api refuses for MiniMax-Music3, by name and with what to do, and what an order holds."""

import json
import subprocess
import sys

import pytest

from broker_schemas.contract import BadField
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.contract import MusicContract
from workers.models.minimax_music3.prompt import build_prompt
from workers.models.minimax_music3.tokenizer import encode, load_tokenizer, write_tokenizer

BODY = {"model": "minimax_music3", "input": "[verse]\nla la", "instructions": "a waltz", "seed": 7}
WIDTH = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    write_tokenizer(folder / config.TOKENIZER)
    for component, stated in {
        config.LANGUAGE_MODEL: {"max_position_embeddings": 40_960},
        config.CONDITION_ENCODER: {"condition_hidden_dim": WIDTH, "out_dim": 32},
        config.TRANSFORMER: {"in_channels": 16},
    }.items():
        (folder / component).mkdir()
        (folder / component / "config.json").write_text(json.dumps(stated))
    return folder


@pytest.fixture(scope="module")
def contract(folder):
    return MusicContract(folder)


def refusal(contract, **changes) -> BadField:
    with pytest.raises(BadField) as refused:
        contract.accept(BODY | changes)
    return refused.value


def test_an_order_holds_all_that_the_audio_depends_on(contract):
    order = contract.accept(BODY | {"max_new_tokens": 250, "async_chunk": False})
    assert order.input == BODY["input"]
    assert order.params == {"instructions": "a waltz", "max_new_tokens": 250, "async_chunk": False}
    assert order.max_frames == 250


def test_neutral_values_are_taken(contract):
    order = contract.accept(BODY)
    for neutral in ({"voice": "Default "}, {"voice": ""}, {"speed": 1.0}, {"speed": 1}, {"extra_params": {}}):
        assert contract.accept(BODY | neutral) == order
    assert order.params["async_chunk"] is True


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("voice", "alloy", "instructions"),
        ("voice", {"id": "x"}, "instructions"),
        ("ref_audio", "data:audio/wav;base64,", "instructions"),
        ("ref_text", "hello", "instructions"),
        ("language", "English", "input"),
        ("task_type", "Base", "input"),
        ("speed", 1.1, "instructions"),
        ("speed", True, "instructions"),
        ("speed", "1", "instructions"),
        ("temperature", 0.9, "seed"),
        ("temperature", 0, "seed"),
        ("top_p", 1.0, "seed"),
        ("top_k", 50, "seed"),
        ("repetition_penalty", 1.05, "seed"),
        ("cfg_role", "cond", "leave it out"),
        ("cfg_pair_id", "1", "leave it out"),
        ("cfg_null_prompt", [], "leave it out"),
        ("input", "", "lyrics"),
        ("input", " \n", "lyrics"),
        ("input", None, "lyrics"),
        ("input", "\ud800", "whole characters"),
        ("instructions", "", "music"),
        ("instructions", None, "music"),
        ("instructions", 5, "music"),
        ("instructions", "x" * 20_001, "20,000"),
        ("max_new_tokens", 0, "9,000"),
        ("max_new_tokens", -1, "9,000"),
        ("max_new_tokens", 9_001, "9,000"),
        ("max_new_tokens", True, "9,000"),
        ("max_new_tokens", 100.0, "9,000"),
        ("max_new_tokens", "100", "9,000"),
        ("async_chunk", 1, "true or false"),
        ("extra_params", [1], "object"),
    ],
)
def test_refusals_name_the_field_and_what_to_do(contract, field, value, instead):
    refused = refusal(contract, **{field: value})
    assert refused.field == field
    assert field in str(refused) and instead in str(refused)


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "repetition_penalty", "cfg_role", "x"])
def test_extra_params_are_refused_by_name(contract, name):
    refused = refusal(contract, extra_params={name: 1})
    assert refused.field == f"extra_params.{name}" and name in str(refused)


def test_a_caption_of_20_000_characters_is_taken(contract):
    assert contract.accept(BODY | {"instructions": "warm folk " * 2_000})


def test_lyrics_of_50_000_characters_and_no_more_are_tokenized(contract, monkeypatch):
    assert "tokens" in str(refusal(contract, input="la " * 16_666))
    monkeypatch.setattr("workers.models.minimax_music3.contract.encode", lambda *_: pytest.fail("it was tokenized"))
    refused = refusal(contract, input="l" * 50_001)
    assert refused.field == "input" and "50,001 characters" in str(refused) and "50,000" in str(refused)


@pytest.fixture(scope="module")
def tokens_of(folder):
    tokenizer = load_tokenizer(folder / config.TOKENIZER)
    return lambda lyrics: len(encode(tokenizer, build_prompt(BODY["instructions"], lyrics)))


def test_a_long_prompt_leaves_less_room(contract, tokens_of):
    lyrics = "la " * 2000
    order = contract.accept(BODY | {"input": lyrics})
    assert 8_000 < order.max_frames < 9_000
    assert order.params["max_new_tokens"] == order.max_frames
    tokens = tokens_of(lyrics)
    assert order.max_frames == config.CONTEXT - tokens - 1
    assert contract.accept(BODY | {"input": lyrics, "max_new_tokens": order.max_frames}).max_frames == order.max_frames
    refused = refusal(contract, input=lyrics, max_new_tokens=order.max_frames + 1)
    assert refused.field == "max_new_tokens"
    assert f"{order.max_frames:,} frames" in str(refused) and f"{tokens:,} tokens" in str(refused)


def test_a_full_song_fits_beside_1239_tokens_and_no_more(contract, tokens_of):
    few = "la " * 1000
    more = few + "la " * (1239 - tokens_of(few))
    assert tokens_of(more) == 1239
    assert contract.accept(BODY | {"input": more, "max_new_tokens": 9_000}).max_frames == 9_000
    refused = refusal(contract, input=more + "la ", max_new_tokens=9_000)
    assert "8,999 frames" in str(refused)


def test_a_short_prompt_gets_all_frames(contract):
    assert contract.accept(BODY).max_frames == 9_000


def test_a_prompt_over_5_000_tokens_is_refused(contract):
    refused = refusal(contract, input="la " * 5_001, max_new_tokens=1)
    assert refused.field == "input" and "5,000" in str(refused)


def test_a_smaller_checkpoint_has_less_room(folder, tmp_path):
    small = tmp_path / "small"
    for component in (config.TOKENIZER, config.CONDITION_ENCODER, config.TRANSFORMER):
        small.mkdir(exist_ok=True)
        (small / component).symlink_to(folder / component)
    (small / config.LANGUAGE_MODEL).mkdir()
    (small / config.LANGUAGE_MODEL / "config.json").write_text('{"max_position_embeddings": 512}')
    assert MusicContract(small).accept(BODY).max_frames < 512
    assert "no frame fits" in str(refusal(MusicContract(small), input="la " * 512))


def test_a_deploy_file_may_leave_less_room_than_the_checkpoint_has(folder):
    """What the talker could not hold is refused before any work is done."""
    contract = MusicContract(folder, max_model_len=300)
    assert contract.accept(BODY).max_frames < 300
    assert "frames" in str(refusal(contract, max_new_tokens=300))


def test_the_reserve_covers_sound_conditioning_and_codes(contract):
    order = contract.accept(BODY)
    pcm = int(360.478 * 32_000) * 4
    assert order.reserve_bytes > pcm + 9_000 * WIDTH * 4 + 2 * 9_001 * 16
    assert order.reserve_bytes < 1.05 * (pcm + 9_000 * WIDTH * 4 + 2 * 9_001 * 16)
    assert contract.accept(BODY | {"max_new_tokens": 100}).reserve_bytes < order.reserve_bytes / 20


def test_no_torch_in_the_api_process():
    code = "import sys, workers.models.minimax_music3.contract; print({'torch', 'diffusers'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
