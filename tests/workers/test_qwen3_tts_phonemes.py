"""The text front end: what is read, what is passed over, which version may read, and what a contract makes of it."""

# ruff: noqa: RUF001, phonemes and the texts are of many scripts

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_schemas.contract import BadField
from compose.cli import main
from compose.trouble import NO_CHECKPOINT
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.models.qwen3_tts import config, phonemes
from workers.models.qwen3_tts.config import ConfigError
from workers.models.qwen3_tts.contract import SpeechContract
from workers.models.qwen3_tts.passages import LENGTH, SPARE
from workers.models.qwen3_tts.phonemes import reading
from workers.models.qwen3_tts.prompt import build_prompt, prompt_length
from workers.models.qwen3_tts.tokenizer import load_tokenizer
from workers.models.qwen_tokenizer import encode

FAMILY = load_family("qwen3_tts")
TEXT = "The river keeps its own slow time. Dr. Lee paid $9.99 on May 3rd! “And you?”"
BODY = {"model": "qwen3_tts", "input": TEXT, "seed": 7}
FRONT_END = {"name": "hibari", "version": "0.2.1"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder():
    return tiny_checkpoint("qwen3_tts", size="tiny-8")


@pytest.fixture(scope="module")
def contract(folder):
    return SpeechContract(folder)


def restated(folder: Path, to: Path, **changes) -> Path:
    """A copy of the checkpoint with other fields in its config.json; None takes one out."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    path = to / "config.json"
    stated = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in stated.items() if value is not None}))
    return to


def refusal(contract, **asked) -> BadField:
    with pytest.raises(BadField) as refused:
        contract.accept(BODY | asked)
    return refused.value


# --- reading ----------------------------------------------------------------------------------------------------------


def test_sentences_are_read_as_the_package_reads_them_and_joined_by_a_space():
    from hibari.g2p import G2P

    g2p = G2P()
    sentences = ("The river keeps its own slow time.", "Dr. Lee paid $9.99 on May 3rd!", "“And you?”")
    assert reading(TEXT) == " ".join(map(g2p, sentences))
    assert reading("Two\nlines") == f"{g2p('Two')} {g2p('lines')}"
    assert reading("") == reading(" \n") == ""


def test_an_unknown_word_is_read_too():
    assert reading("Zyxxquor flibbertiwocky").replace("ˈ", "").startswith("z")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Hello 你好 world", "Hello world"),
        ("Tokyo (東京) is big.", "Tokyo is big."),
        ("He said “да” and left.", "He said and left."),
        ("Привет, hello!", ", hello!"),
        ("cafe\u0301", "café"),
        ("Hello 👍🏽 world", "Hello world"),
    ],
)
def test_words_of_other_scripts_are_passed_over(text, same):
    assert reading(text) == reading(same) != ""


@pytest.mark.parametrize("text", ["你好。", "Привет", "नदी का समय", "한국어", "Ελλάδα", "שלום"])
def test_a_text_of_another_script_reads_as_nothing(text):
    assert reading(text) == ""


def test_a_sign_of_another_script_is_read_by_its_name():
    assert reading("π is 3.14") == "pˈI ɪz θɹˈi pYnt wˈʌn fˈɔɹ"
    assert reading("[thing](/θˈɪŋ/)") == "θˈɪŋ"


@pytest.mark.parametrize(
    "text", ["9" * 40, f"It is {'9' * 40}, is it not?", "~…~)aİ", "İ", "x" * 5_000, "!?" * 2_000 + "a"]
)
def test_what_the_package_fails_on_or_is_slow_with_is_read_all_the_same(text):
    assert reading(text)
    if "9" in text:
        assert reading(text).count("nˈIn") == 40


@pytest.mark.parametrize("text", ["[x](/<|im_end|>/)", "<|im_start|>", "a\x00b", "_|_ ^ ~"])
def test_nothing_but_phonemes_comes_out(text):
    assert set(reading(text)) <= phonemes.alphabet()


def test_the_package_never_has_more_than_a_passage_to_read(monkeypatch):
    """Its time grows with the square of what it reads at once."""
    read, phonemes_of = [], phonemes._phonemes
    monkeypatch.setattr(phonemes, "_phonemes", lambda text: read.append(text) or phonemes_of(text))
    reading("Longer and " * 100 + "\n" + "y" * 1_000)
    assert len(read) >= 4 and max(map(len, read)) <= LENGTH + SPARE


@pytest.mark.parametrize("word", ["/" * 400 + "a", "a/" * 200, "IsIt" * 100, "1a" * 200, "a@" * 200, "'/" * 200 + "a"])
def test_what_has_no_white_space_is_read_a_few_parts_at_once(monkeypatch, word):
    """The package's time grows with the cube of their number: for 400 characters it took 25 seconds."""
    read, phonemes_of = [], phonemes._phonemes
    monkeypatch.setattr(phonemes, "_phonemes", lambda text: read.append(text) or phonemes_of(text))
    assert reading(f"It is {word}.")
    parts = [re.findall("[A-Z]?[a-z]+|[^a-z]", word) for text in read for word in text.split()]
    assert max(map(len, parts)) <= 16


@pytest.mark.parametrize(
    "text",
    [
        "Pneumonoultramicroscopicsilicovolcanoconiosis!",
        "Mail Rafael.deVries22@example.com.",
        "the river's run-of-the-mill well-meant ever-after",
        "It is [pneumonoultramicroscopic](/nˌumənˌOˌʌltɹəmˌIkɹəskˈɑpɪk/)—and-so-on.",
    ],
)
def test_words_addresses_and_how_they_are_spoken_stay_whole(text):
    assert reading(text) == phonemes._read(text)


def test_where_it_goes_on_it_is_read_in_pieces():
    address = "https://example.com/rivers/and-streams/of/the-north.html"
    assert reading(address) == f"{reading(address[:41])} {reading(address[41:])}"


def test_any_thread_may_read_and_the_package_is_loaded_once(monkeypatch):
    import hibari.g2p

    loads, load = [], hibari.g2p.G2P
    monkeypatch.setattr(hibari.g2p, "G2P", lambda: loads.append(1) or load())
    expected = [reading(f"Sentence {n} is a flibbertiwock.") for n in range(20)]
    phonemes._loaded.cache_clear()
    phonemes._read.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        again = threads.map(lambda n: reading(f"Sentence {n % 20} is a flibbertiwock."), range(80))
        assert list(again) == expected * 4
    assert len(loads) == 1


def test_nothing_is_loaded_before_a_text_is_read():
    program = (
        "import sys; from pathlib import Path; from workers.models.family import load_family;"
        f"load_family('qwen3_tts').contract(Path({str(tiny_checkpoint('qwen3_tts'))!r}), 100);"
        "from workers.models.qwen3_tts import phonemes;"
        "assert not {'torch', 'transformers', 'hibari', 'onnxruntime'} & sys.modules.keys();"
        "phonemes.reading('The river.');"
        "assert not {'torch', 'transformers', 'onnxruntime'} & sys.modules.keys();"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


# --- which version ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_made_for_the_version_that_songline_asks_for(folder):
    assert json.loads((folder / "config.json").read_text())["text_front_end"] == FRONT_END == phonemes.installed()
    for file in ("pyproject.toml", "constraints.txt"):
        assert f"hibari-tts=={FRONT_END['version']}" in (ROOT / file).read_text()


@pytest.mark.parametrize(("there", "told"), [("0.2.1", "0.2.1 is installed"), (None, "none is installed")])
def test_another_version_is_refused_at_the_start_with_what_to_install(monkeypatch, folder, tmp_path, there, told):
    def version(package: str) -> str:
        if there is None:
            raise phonemes.PackageNotFoundError(package)
        return there

    monkeypatch.setattr(phonemes, "version", version)
    other = restated(folder, tmp_path, text_front_end=FRONT_END | {"version": "0.3.0"})
    for load in (lambda: FAMILY.contract(other, 100), lambda: FAMILY.talker(other, {"max_jobs": 1}, None)):
        with pytest.raises(ConfigError, match=f"{told}: pip install hibari-tts==0.3.0"):
            load()


@pytest.mark.parametrize("role", ["up", "api"])
def test_the_command_says_what_to_install(real_broker, redis_server, folder, tmp_path, capsys, role):
    other = restated(folder, tmp_path, text_front_end=FRONT_END | {"version": "0.3.0"})
    flags = ["--model", "qwen3_tts", "--checkpoint", str(other), "--broker", redis_server.url, "--port", "0"]
    assert main([role, *flags]) == NO_CHECKPOINT
    assert "pip install hibari-tts==0.3.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "asked", ["hibari", {"name": "espeak", "version": "1"}, {"name": "hibari"}, {"name": "hibari", "version": 2}]
)
def test_another_front_end_is_refused(folder, tmp_path, asked):
    with pytest.raises(ConfigError, match="text_front_end"):
        config.load_config(restated(folder, tmp_path, text_front_end=asked))


# --- the prompt and the contract --------------------------------------------------------------------------------------


def test_what_is_spoken_is_read_and_nothing_else_of_the_prompt(folder, tmp_path):
    tokenizer = load_tokenizer(folder)
    plain = restated(folder, tmp_path, text_front_end=None, tts_model_size="1b7")
    taught = restated(folder, tmp_path / "taught", tts_model_size="1b7")
    params = SpeechContract(taught).accept(BODY | {"instructions": "In a whisper."}).params
    said = build_prompt(config.load_config(taught), tokenizer, TEXT, params)
    as_it_is = build_prompt(config.load_config(plain), tokenizer, TEXT, params)
    assert said == build_prompt(config.load_config(plain), tokenizer, reading(TEXT), params)
    assert as_it_is != said
    whisper = encode(tokenizer, "<|im_start|>user\nIn a whisper.<|im_end|>\n")
    assert said.text[: len(whisper)] == as_it_is.text[: len(whisper)] == whisper
    assert encode(tokenizer, TEXT) == [id_ for id_ in as_it_is.text if id_ < 332][-len(encode(tokenizer, TEXT)) :]


def test_an_order_keeps_the_text_as_it_was_sent(contract):
    order = contract.accept(BODY | {"input": "Hello 你好 world"})
    assert order.input == "Hello 你好 world" and order.params["non_streaming_mode"] is True


def test_voices_and_languages_are_the_configs(contract):
    assert contract.voices == ("ryan", "vivian")
    assert contract.accept(BODY | {"language": "english", "voice": "vivian"}).params["language"] == "English"
    assert "english" in str(refusal(contract, language="German"))
    assert "ryan, vivian" in str(refusal(contract, voice="serena"))


@pytest.mark.parametrize("text", ["你好。", "Привет, мир!", "नदी " * 300])
def test_what_cannot_be_read_is_refused_by_name(contract, text):
    refused = refusal(contract, input=text)
    assert refused.field == "input" and str(refused).startswith("input") and "Latin letters" in str(refused)


def test_a_spread_text_is_refused_with_what_to_do(contract, folder, tmp_path):
    refused = refusal(contract, non_streaming_mode=False)
    assert refused.field == "non_streaming_mode" and "Leave it out" in str(refused)
    assert contract.accept(BODY | {"non_streaming_mode": True}) == contract.accept(BODY)
    taught = SpeechContract(restated(folder, tmp_path, streaming_text=True))
    assert taught.accept(BODY | {"non_streaming_mode": False}).params["non_streaming_mode"] is False
    with pytest.raises(ConfigError, match="streaming_text is 'no'"):
        config.load_config(restated(folder, tmp_path, streaming_text="no"))


class TestBudget:
    def test_it_is_in_proportion_to_the_phonemes(self, contract):
        for text in ("Hi.", TEXT, "1999", "word " * 70):
            assert contract.accept(BODY | {"input": text}).max_frames == 192 + 3 * len(reading(text))

    def test_prompt_and_frames_fit_the_context_exactly(self, folder):
        small = SpeechContract(folder, 200)
        params = small.accept(BODY | {"input": "Hi.", "max_new_tokens": 10}).params
        stated, tokenizer = config.load_config(folder), load_tokenizer(folder)
        prompt = prompt_length(build_prompt(stated, tokenizer, "Hi.", params))
        assert small.accept(BODY | {"input": "Hi."}).max_frames == 200 - prompt
        assert refusal(small, input="Hi.", max_new_tokens=201 - prompt).field == "max_new_tokens"

    def test_a_text_that_would_be_cut_off_is_refused(self, folder):
        spoken, beside = len(reading(TEXT)), 20
        assert SpeechContract(folder, beside + 2 * spoken).accept(BODY)
        refused = refusal(SpeechContract(folder, beside + spoken + spoken // 4))
        assert refused.field == "input" and "in parts" in str(refused)

    def test_passages_cut_the_text_as_it_is_and_count_what_is_read(self, contract):
        text = (TEXT + " ") * 30 + "漢字" * 300 + " The end."
        order = contract.accept(BODY | {"input": text})
        passages = order.params["passages"]
        said = [text[passage["start"] : passage["end"]] for passage in passages]
        assert [passage["frames"] for passage in passages] == [192 + 3 * len(reading(piece)) for piece in said]
        assert all(reading(piece) for piece in said) and sum(map(len, said)) < len(text) - 300
        assert order.max_frames == 192 + 3 * len(reading(text)) < sum(passage["frames"] for passage in passages)

    def test_any_two_passages_fit_the_context_together(self, folder):
        contract = SpeechContract(folder, 2_600)
        order = contract.accept(BODY | {"input": (TEXT + " ") * 20 + "x" * 700 + " 9" * 500})
        stated, tokenizer = config.load_config(folder), load_tokenizer(folder)
        passages = order.params["passages"]
        for before in passages:
            for passage in passages:
                both = "".join(order.input[each["start"] : each["end"]] for each in (before, passage))
                positions = prompt_length(build_prompt(stated, tokenizer, both, order.params, before["frames"]))
                assert positions + passage["frames"] <= 2_600


def test_the_first_text_finds_the_package_loaded(folder):
    code = f"""
import sys
from pathlib import Path
from workers.models.qwen3_tts import phonemes
from workers.models.qwen3_tts.tokenizer import load_tokenizer
assert "hibari" not in sys.modules
load_tokenizer(Path({str(folder)!r}))
assert phonemes._loaded.cache_info().currsize == 1 and phonemes._loaded()._oov is not None
"""
    subprocess.run([sys.executable, "-c", code], check=True)
