"""What is added up at each position of Qwen3-TTS's prompts. Equality with the authors' package: tests/parity."""

from __future__ import annotations

import json

import pytest

from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.checkpoint import make_checkpoint
from workers.models.qwen3_tts.prompt import NOTHING, build_prompt, prompt_length
from workers.models.qwen3_tts.tokenizer import load_tokenizer
from workers.models.qwen_tokenizer import TokenizerError, encode

PAD, BOS, EOS = 151_671, 151_672, 151_673
CODEC_PAD, CODEC_BOS, THINK, NOTHINK, THINK_BOS, THINK_EOS = 2148, 2149, 2154, 2155, 2156, 2157
ENGLISH, CHINESE, BEIJING = 2050, 2055, 2074
VIVIAN, DYLAN = 3065, 2878

VOICE = {"task_type": "custom_voice", "voice": "vivian", "language": "English", "instructions": ""}
WHOLE, SPREAD = {"non_streaming_mode": True}, {"non_streaming_mode": False}
CLONE = {"task_type": "base", "voice": "", "language": "Auto", "instructions": ""}
TEXT = "One two three."


@pytest.fixture(scope="module")
def stated():
    return config.load_config(tiny_checkpoint("qwen3_tts"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint(folder, "tiny-base", 0)
    return config.load_config(folder)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(tiny_checkpoint("qwen3_tts"))


@pytest.fixture(scope="module")
def words(tokenizer):
    return encode(tokenizer, TEXT)


@pytest.fixture(scope="module")
def role(tokenizer):
    return encode(tokenizer, "<|im_start|>assistant\n")


def test_the_whole_text_comes_before_the_frames(stated, tokenizer, words, role):
    prompt = build_prompt(stated, tokenizer, TEXT, VOICE | WHOLE)
    assert prompt.text == [*role, *[PAD] * 5, BOS, *words, EOS, PAD]
    steering = [THINK, THINK_BOS, ENGLISH, THINK_EOS, VIVIAN, CODEC_PAD]
    assert prompt.codec == [*[NOTHING] * 3, *steering, *[CODEC_PAD] * (len(words) + 1), CODEC_BOS]
    assert (prompt.speaker, list(prompt.frames), prompt.trailing) == (None, [], [])
    assert prompt_length(prompt) == len(prompt.text) == len(prompt.codec)


def test_a_spread_text_begins_with_the_frames_and_ends_with_its_end(stated, tokenizer, words, role):
    prompt = build_prompt(stated, tokenizer, TEXT, VOICE | SPREAD)
    assert prompt.text == [*role, *[PAD] * 5, BOS, words[0]]
    assert prompt.codec[-1] == CODEC_BOS
    assert prompt.trailing == [*words[1:], EOS]


def test_without_a_language_the_model_finds_out(stated, tokenizer):
    prompt = build_prompt(stated, tokenizer, TEXT, VOICE | WHOLE | {"language": "Auto"})
    assert prompt.codec[3:8] == [NOTHINK, THINK_BOS, THINK_EOS, VIVIAN, CODEC_PAD]


@pytest.mark.parametrize(
    ("voice", "language", "spoken"),
    [
        ("dylan", "Auto", BEIJING),
        ("Dylan", "Chinese", BEIJING),
        ("dylan", "English", ENGLISH),
        ("vivian", "chinese", CHINESE),
    ],
)
def test_who_has_a_dialect_speaks_it_for_chinese(stated, tokenizer, voice, language, spoken):
    prompt = build_prompt(stated, tokenizer, TEXT, VOICE | WHOLE | {"voice": voice, "language": language})
    assert prompt.codec[3:7] == [THINK, THINK_BOS, spoken, THINK_EOS]


def test_instructions_come_first_and_are_text_alone(stated, tokenizer):
    plain = build_prompt(stated, tokenizer, TEXT, VOICE | WHOLE)
    prompt = build_prompt(stated, tokenizer, TEXT, VOICE | WHOLE | {"instructions": "Whisper."})
    said = encode(tokenizer, "<|im_start|>user\nWhisper.<|im_end|>\n")
    assert prompt.text == [*said, *plain.text]
    assert prompt.codec == [*[NOTHING] * len(said), *plain.codec]


def test_the_small_model_hears_no_instructions(tokenizer, tmp_path):
    make_checkpoint(tmp_path, "tiny", 0)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tts_model_size": config.SMALL}))
    small = config.load_config(tmp_path)
    asked = VOICE | WHOLE | {"instructions": "Whisper."}
    assert build_prompt(small, tokenizer, TEXT, asked) == build_prompt(small, tokenizer, TEXT, VOICE | WHOLE)


def test_a_clone_by_its_speaker_vector(base, tokenizer, words, role):
    params = CLONE | SPREAD | {"ref_text": "", "x_vector_only_mode": True}
    prompt = build_prompt(base, tokenizer, TEXT, params)
    assert prompt.text == [*role, *[PAD] * 4, BOS, words[0]]
    assert prompt.codec == [*[NOTHING] * 3, NOTHINK, THINK_BOS, THINK_EOS, NOTHING, CODEC_PAD, CODEC_BOS]
    assert prompt.speaker == 6
    assert list(prompt.frames) == []


@pytest.mark.parametrize("frames", [0, 2, 9])
def test_a_clone_in_context_lays_the_text_beside_the_references_frames(base, tokenizer, words, frames):
    params = CLONE | SPREAD | {"ref_text": "Four.", "x_vector_only_mode": False}
    prompt = build_prompt(base, tokenizer, TEXT, params, frames=frames)
    spoken = [*encode(tokenizer, "Four."), *words, EOS]
    start = 8  # role, steering, speaker
    beside = prompt.text[start:]
    assert beside == (spoken + [PAD] * frames)[: frames + 1]
    assert prompt.trailing == spoken[frames + 1 :]
    assert prompt.codec[start:] == [CODEC_BOS, *[NOTHING] * frames]
    assert list(prompt.frames) == list(range(start + 1, start + 1 + frames))


def test_a_clone_in_context_with_the_whole_text_first(base, tokenizer, words):
    params = CLONE | WHOLE | {"ref_text": "Four.", "x_vector_only_mode": False}
    prompt = build_prompt(base, tokenizer, TEXT, params, frames=3)
    spoken = [*encode(tokenizer, "Four."), *words, EOS]
    assert prompt.text[8:] == [*spoken, *[PAD] * 4]
    assert prompt.codec[8:] == [*[CODEC_PAD] * len(spoken), CODEC_BOS, *[NOTHING] * 3]
    assert list(prompt.frames) == [len(prompt.text) - 3, len(prompt.text) - 2, len(prompt.text) - 1]
    assert prompt.trailing == []


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    make_checkpoint(tmp_path, "tiny", 0)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(path.read_text().replace("<|im_start|>", "<|begin|>"))
    with pytest.raises(TokenizerError, match="another model's"):
        load_tokenizer(tmp_path)
    path.unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        load_tokenizer(tmp_path)
