"""What the api refuses for Qwen3-TTS, by name and with what to do, and what an order holds."""

# ruff: noqa: RUF001, the texts are of many scripts

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from api.settings import ApiSettings
from broker_schemas.contract import BadField
from broker_schemas.events import JobRequested
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.checkpoint import make_checkpoint
from workers.models.qwen3_tts.contract import SpeechContract
from workers.models.qwen3_tts.prompt import build_prompt, prompt_length
from workers.models.qwen3_tts.tokenizer import load_tokenizer

BODY = {"model": "qwen3_tts", "input": "Hello, world.", "voice": "vivian", "seed": 7}
DESIGN = {"model": "qwen3_tts", "input": "Hello.", "instructions": "An old sailor."}
CLONE = {"model": "qwen3_tts", "input": "Hello.", "voice": "grandma", "ref_text": "As I said."}
CONTEXT = 32_768


@pytest.fixture(scope="module")
def folder():
    return tiny_checkpoint("qwen3_tts")


@pytest.fixture(scope="module")
def contract(folder):
    return SpeechContract(folder)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Contracts of the models that design and clone."""
    made = {}
    for kind in ("design", "base"):
        folder = tmp_path_factory.mktemp(kind)
        make_checkpoint(folder, f"tiny-{kind}", 0)
        made[kind] = SpeechContract(folder)
    return made


def refusal(contract, body) -> BadField:
    with pytest.raises(BadField) as refused:
        contract.accept(body)
    return refused.value


def test_an_order_resolves_every_parameter(contract):
    order = contract.accept(BODY)
    assert order.input == "Hello, world."
    assert order.params == {
        "task_type": "custom_voice",
        "voice": "vivian",
        "language": "Auto",
        "instructions": "",
        "non_streaming_mode": True,
        "max_new_tokens": order.max_frames,
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
        "subtalker_temperature": 0.9,
        "subtalker_top_k": 50,
        "subtalker_top_p": 1.0,
        "do_sample": True,
        "ref_audio": "",
        "ref_text": "",
        "x_vector_only_mode": False,
        "first_chunk_frames": 1,
        "async_chunk": True,
    }


def test_what_is_asked_is_what_is_ordered(contract):
    asked = {
        "language": "German", "instructions": "Whisper.", "non_streaming_mode": False, "max_new_tokens": 75,
        "temperature": 0.5, "top_k": 7, "top_p": 0.8, "repetition_penalty": 1.5, "subtalker_temperature": 0.4,
        "subtalker_top_k": 8, "subtalker_top_p": 0.7, "do_sample": False, "first_chunk_frames": 4, "async_chunk": False,
    }  # fmt: skip
    order = contract.accept(BODY | asked)
    assert {name: order.params[name] for name in asked} == asked
    assert order.max_frames == 75


def test_names_are_found_however_they_are_written(contract):
    asked = {"voice": " Vivian ", "language": "german", "task_type": "CustomVoice", "speed": 1.0, "extra_params": {}}
    order = contract.accept(BODY | asked)
    assert (order.params["voice"], order.params["language"]) == ("vivian", "German")
    assert contract.accept(BODY | {"language": "AUTO"}) == contract.accept(BODY | {"language": ""})
    assert contract.accept(BODY | {"voice": None}).params["voice"] in contract._config.speakers
    assert contract.accept(BODY | {"voice": "default"}) == contract.accept(BODY | {"voice": ""})


def test_the_checkpoints_own_defaults_come_before_the_published_ones(folder, tmp_path):
    for file in folder.iterdir():
        if file.suffix in (".json", ".txt"):
            (tmp_path / file.name).symlink_to(file)
    stated = json.loads((folder / "generation_config.json").read_text())
    del stated["top_p"]
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(
        json.dumps(stated | {"temperature": 0.7, "do_sample": False, "max_new_tokens": 90})
    )
    order = SpeechContract(tmp_path).accept(BODY | {"input": "word " * 50})
    assert (order.params["temperature"], order.params["top_p"], order.params["do_sample"]) == (0.7, 1.0, False)
    assert order.max_frames == 90


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("voice", "alloy", "vivian"),
        ("voice", 3, "vivian"),
        ("language", "Klingon", "english"),
        ("language", "beijing_dialect", "english"),
        ("task_type", "Base", "custom_voice"),
        ("task_type", 1, "custom_voice"),
        ("speed", 1.5, "instructions"),
        ("speed", True, "instructions"),
        ("instructions", 1, "string"),
        ("instructions", "x" * 4_001, "4,000"),
        ("ref_audio", "UklGRg==", "Base"),
        ("ref_text", "As I said.", "Base"),
        ("x_vector_only_mode", True, "Base"),
        ("temperature", 0, "do_sample"),
        ("temperature", -1.0, "do_sample"),
        ("temperature", float("nan"), "above 0"),
        ("temperature", "hot", "above 0"),
        ("subtalker_temperature", 0.0, "do_sample"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.01, "at most 1"),
        ("top_k", -1, "0 keeps"),
        ("top_k", 1.5, "0 keeps"),
        ("top_k", True, "0 keeps"),
        ("subtalker_top_k", -1, "0 keeps"),
        ("repetition_penalty", 0, "above 0"),
        ("do_sample", 1, "true or false"),
        ("non_streaming_mode", "yes", "true or false"),
        ("async_chunk", 0, "true or false"),
        ("first_chunk_frames", 0, "1 to 25"),
        ("first_chunk_frames", 26, "1 to 25"),
        ("max_new_tokens", 0, "12.5 are a second"),
        ("max_new_tokens", 2.0, "12.5 are a second"),
        ("max_new_tokens", 32_760, "fit"),
        ("extra_params", [], "object"),
    ],
)
def test_refusals_name_the_field_and_what_to_do(contract, field, value, instead):
    refused = refusal(contract, BODY | {field: value})
    assert refused.field == field
    assert str(refused).startswith(field)
    assert instead in str(refused)


@pytest.mark.parametrize("extra", ["temperature", "pitch"])
def test_extra_params_are_refused_by_name(contract, extra):
    assert refusal(contract, BODY | {"extra_params": {extra: 1}}).field == f"extra_params.{extra}"


@pytest.mark.parametrize(
    "text",
    ["", "  \n\t", "🎵", "👩‍👩‍👧 ❤️ 👍🏽", "1️⃣ 2️⃣", "ℹ️", "🇩🇪", "\x00\x07\x1b", "...?!", None, 7],
)
def test_what_cannot_be_said_is_refused(contract, text):
    assert refusal(contract, BODY | {"input": text}).field == "input"


@pytest.mark.parametrize(
    "text", ["1", "é", "你好 🎵", "I ❤️ you", "٣", "हाँ", "a" * 10_000, "好" * 10_000, "word " * 2_000]
)
def test_what_people_send_is_taken_as_it_is(contract, text):
    assert contract.accept(BODY | {"input": text}).input == text


def test_control_characters_are_dropped_and_line_ends_kept(contract):
    order = contract.accept(BODY | {"input": "a\x00b\r\n\tc\x1b\x7f\x85d", "instructions": "\x07Whisper."})
    assert (order.input, order.params["instructions"]) == ("ab\r\n\tcd", "Whisper.")


def test_half_a_surrogate_and_too_long_a_text_are_refused(contract):
    assert "whole characters" in str(refusal(contract, BODY | {"input": "a\ud83d"}))
    assert "50,000" in str(refusal(contract, BODY | {"input": "a" * 50_001}))


class TestBudget:
    def test_it_grows_with_the_text_up_to_a_cap(self, contract):
        short, longer, longest = (contract.accept(BODY | {"input": "word " * n}).max_frames for n in (1, 50, 10_000))
        assert 100 < short < 300
        assert longer - short > 50 * 6  # a slow speaker says a word in half a second
        assert longest - short > 10_000 * 6
        assert contract.accept(BODY | {"input": "x" * 300, "instructions": "x" * 4_000}).max_frames <= 8_192

    def test_prompt_and_frames_fit_the_context_exactly(self, folder):
        small = SpeechContract(folder, 200)
        params = small.accept(BODY | {"max_new_tokens": 10}).params
        prompt = prompt_length(build_prompt(config.load_config(folder), load_tokenizer(folder), BODY["input"], params))
        assert small.accept(BODY).max_frames == 200 - prompt
        assert small.accept(BODY | {"max_new_tokens": 200 - prompt}).max_frames == 200 - prompt
        assert f"only {200 - prompt} frames" in str(refusal(small, BODY | {"max_new_tokens": 201 - prompt}))

    def test_a_text_that_would_be_cut_off_is_refused(self, folder):
        small = SpeechContract(folder, 200)
        refused = refusal(small, BODY | {"input": "word " * 100})
        assert refused.field == "input"
        assert "in parts" in str(refused)
        assert refusal(small, BODY | {"input": "word " * 300, "max_new_tokens": 1}).field == "input"

    def test_a_references_frames_are_counted(self, others):
        base = others["base"]
        plain = base.accept(CLONE | {"x_vector_only_mode": True, "max_new_tokens": 100})
        assert plain.max_frames == 100
        assert base.accept(CLONE | {"max_new_tokens": CONTEXT - 800}).max_frames == CONTEXT - 800
        assert refusal(base, CLONE | {"max_new_tokens": CONTEXT - 700}).field == "max_new_tokens"

    def test_reserve_is_the_sound_and_not_much_more(self, contract):
        order = contract.accept(BODY | {"max_new_tokens": 1_000})
        sound = 1_000 * 1_920 * 2
        assert sound + 1_000 * 16 * 2 < order.reserve_bytes < 1.1 * sound
        finer = contract.accept(BODY | {"max_new_tokens": 1_000, "instructions": "x" * 1_000})
        assert finer.reserve_bytes - order.reserve_bytes == 1_000


MIXED = "The river keeps its own slow time, said Dr. Lee. 河流有自己的时间。नदी का अपना समय है। 👍🏽 Да, 3.14 раза!\n\n"


class TestLongText:
    def test_a_short_text_has_no_passages(self, contract):
        for text in ("Hi.", "word " * 79, "漢字" * 60):
            assert "passages" not in contract.accept(BODY | {"input": text}).params

    def test_ten_thousand_characters_of_many_scripts(self, contract):
        text = (MIXED * 200)[:10_000]
        order = contract.accept(BODY | {"input": text})
        passages = order.params["passages"]
        assert "".join(text[passage["start"] : passage["end"]] for passage in passages) == text == order.input
        assert 20 < len(passages) < 120
        assert order.max_frames == order.params["max_new_tokens"] < sum(passage["frames"] for passage in passages)
        words = len(load_tokenizer(tiny_checkpoint("qwen3_tts")).encode(text).ids)
        assert order.max_frames == 192 + 12 * words

    def test_what_has_no_words_is_no_passage(self, contract):
        text = "Hello. " + "👍🏽 " * 400 + "World. " + "*** " * 400
        order = contract.accept(BODY | {"input": text})
        said = [text[passage["start"] : passage["end"]] for passage in order.params["passages"]]
        assert len(said) == 2 and said[0].startswith("Hello.") and "World." in said[1]

    @pytest.mark.parametrize("whole_text", [True, False])
    @pytest.mark.parametrize(
        ("kind", "body"), [("custom", BODY), ("base", CLONE), ("base", CLONE | {"ref_text": None})]
    )
    def test_any_two_passages_fit_the_context_together(
        self, monkeypatch, contract, folder, others, kind, body, whole_text
    ):
        """The one that is said goes on from another, and that need not be the one before."""
        contract = others["base"] if kind == "base" else contract
        monkeypatch.setattr(contract, "_context", 2_200)
        stated = contract._config
        reference = config.MAX_REFERENCE_FRAMES if body.get("ref_text") else 0
        text = MIXED * 12 + "x" * 700 + "9 " * 500
        order = contract.accept(body | {"input": text, "non_streaming_mode": whole_text})
        tokenizer, tight = load_tokenizer(folder), 0
        passages = order.params["passages"]
        for before in passages:
            for passage in passages:
                both = "".join(text[each["start"] : each["end"]] for each in (before, passage))
                frames = reference + before["frames"]
                positions = prompt_length(build_prompt(stated, tokenizer, both, order.params, frames))
                assert positions + passage["frames"] <= 2_200
                tight = max(tight, positions + passage["frames"])
        assert not reference or tight > 1_900

    def test_too_little_room_for_its_passages_is_refused(self, folder):
        small = SpeechContract(folder, 300)
        assert "in parts" in str(refusal(small, BODY | {"input": "word " * 100}))
        assert SpeechContract(folder, 1_000).accept(BODY | {"input": "word " * 100}).params["passages"]

    @pytest.mark.parametrize("character", ["a", "a ", "好", "9", "𐌰", "ག "])
    def test_the_longest_text_fits_an_api_s_default_budget(self, contract, character):
        """Also where each character has several tokens, and whatever its request may ask for."""
        text = (character * 50_000)[:50_000]
        order = contract.accept(BODY | {"input": text})
        most = min(600_000, sum(passage["frames"] for passage in order.params["passages"]))
        dearest = contract.accept(BODY | {"input": text, "max_new_tokens": most, "first_chunk_frames": 1})
        assert max(order.reserve_bytes, dearest.reserve_bytes) < 2.3 * 2**30 < ApiSettings().limits.max_bytes

    def test_the_parts_of_a_character_are_no_more_to_say(self, contract):
        text = "ꙮ" * 50
        assert len(load_tokenizer(tiny_checkpoint("qwen3_tts")).encode(text).ids) > 50
        assert contract.accept(BODY | {"input": text}).max_frames == 192 + 12 * 50

    def test_a_stated_budget_is_the_jobs(self, contract):
        text = "word " * 1_000
        order = contract.accept(BODY | {"input": text, "max_new_tokens": 9_000})
        most = sum(passage["frames"] for passage in order.params["passages"])
        assert order.max_frames == 9_000
        assert contract.accept(BODY | {"input": text, "max_new_tokens": most}).max_frames == most
        refused = refusal(contract, BODY | {"input": text, "max_new_tokens": most + 1})
        assert refused.field == "max_new_tokens" and f"{most:,}" in str(refused)


class TestOtherModels:
    def test_a_model_says_which_voices_it_has_and_whether_it_clones(self, contract, others):
        assert "vivian" in contract.voices and not contract.clones
        assert (others["design"].voices, others["design"].clones) == ((), False)
        assert (others["base"].voices, others["base"].clones) == ((), True)
        assert all(contract.accept(BODY | {"voice": voice}).params["voice"] == voice for voice in contract.voices)

    def test_a_design_needs_its_description(self, others):
        order = others["design"].accept(DESIGN)
        assert (order.params["task_type"], order.params["voice"]) == ("voice_design", "")
        assert order.params["instructions"] == "An old sailor."
        assert refusal(others["design"], DESIGN | {"instructions": " "}).field == "instructions"
        assert refusal(others["design"], DESIGN | {"voice": "vivian"}).field == "voice"

    def test_a_clone_in_context(self, others):
        params = others["base"].accept(CLONE).params
        assert params["non_streaming_mode"] is False
        assert (params["voice"], params["ref_text"], params["x_vector_only_mode"]) == ("grandma", "As I said.", False)

    def test_a_voice_without_transcript_lends_its_vector(self, others):
        params = others["base"].accept(CLONE | {"ref_text": None}).params
        assert (params["ref_text"], params["x_vector_only_mode"]) == ("", True)
        assert others["base"].accept(CLONE | {"x_vector_only_mode": True}).params == params

    def test_a_clone_needs_one_reference(self, others):
        recording = {"voice": None, "ref_audio": "UklGRg=="}
        params = others["base"].accept(CLONE | recording).params
        assert (params["voice"], params["ref_audio"]) == ("", "UklGRg==")
        for changes, field in (
            ({"voice": None}, "voice"),
            ({"voice": "default"}, "voice"),
            ({"ref_audio": "UklGRg=="}, "voice"),
            (recording | {"ref_audio": ""}, "ref_audio"),
            (recording | {"ref_text": None}, "ref_text"),
            ({"ref_text": None, "x_vector_only_mode": False}, "ref_text"),
            ({"ref_text": "..."}, "ref_text"),
            ({"instructions": "Whisper."}, "instructions"),
            ({"task_type": "voice_design"}, "task_type"),
        ):
            assert refusal(others["base"], CLONE | changes).field == field, changes

    def test_the_small_model_passes_instructions_over(self, folder, tmp_path):
        for file in folder.iterdir():
            if file.suffix in (".json", ".txt") and file.name != "config.json":
                (tmp_path / file.name).symlink_to(file)
        stated = json.loads((folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(stated | {"tts_model_size": "0b6"}))
        small = SpeechContract(tmp_path)
        assert small.accept(BODY | {"instructions": "Whisper."}) == small.accept(BODY)


def test_a_contract_loads_neither_torch_nor_transformers(folder):
    program = (
        "import sys; from pathlib import Path; from workers.models.family import load_family;"
        f"load_family('qwen3_tts').contract(Path({str(folder)!r}), 100);"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_chunks_are_cut_by_the_request_alone(contract):
    family = load_family("qwen3_tts")

    def lengths(**asked) -> list[int]:
        params = contract.accept(BODY | asked).params
        plan = family.plan(JobRequested(model="qwen3_tts", input="x", params=params, seed=1, owner="o", deadline=0))
        return [plan.frames_of(index) for index in range(7)]

    assert lengths() == [1, 2, 4, 8, 16, 25, 25]
    assert lengths(first_chunk_frames=5) == [5, 10, 20, 25, 25, 25, 25]
    assert lengths(first_chunk_frames=25) == [25] * 7


def test_the_fields_are_those_that_the_checkpoint_has_a_use_for(contract, others):
    clones = {"ref_audio", "ref_text", "x_vector_only_mode"}
    for one in (contract, others["design"]):
        assert not clones & one.fields and "instructions" in one.fields
        assert one.tolerated == clones
    assert clones <= others["base"].fields and "instructions" not in others["base"].fields
    assert others["base"].tolerated == {"instructions"}
