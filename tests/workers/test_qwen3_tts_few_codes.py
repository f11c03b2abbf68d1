"""A Qwen3-TTS checkpoint of other numbers: frames of eight codes, and a text vocabulary of bytes and phonemes."""

# ruff: noqa: RUF001, phonemes are no Latin letters

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from broker_schemas.events import JobRequested
from tests.tiny_checkpoint import restate, tiny_checkpoint
from workers.checkpoints import load_component
from workers.models.family import Drawing, load_family
from workers.models.qwen3_tts import config, phonemes
from workers.models.qwen3_tts.acoustic import load_acoustic
from workers.models.qwen3_tts.prompt import NOTHING, build_prompt
from workers.models.qwen3_tts.talker import load_talker
from workers.models.qwen3_tts.tokenizer import PHONEME_VOCABULARY, load_tokenizer, write_phoneme_tokenizer
from workers.models.qwen_tokenizer import TokenizerError, encode
from workers.runners.torch_runner import TorchRunner
from workers.settings import BadSettings, load
from workers.talker.frames import FrameHistory
from workers.talker.sampling import draw_keys, gumbel

MODEL = "qwen3_tts"
FAMILY = load_family(MODEL)
CODEBOOKS, CODES, IDS, END = 8, 1_024, 2_048, 1_126
JOBS = 2
PHONEMES = "ðə ɹˈɪvəɹ kˈips ɪts ˈOn slˈO tˈIm."  # "The river keeps its own slow time."
TEXTS = ("", "plain", " spaces  and\n\nlines\t", PHONEMES, "漢字 नदी 👍🏽", "<|im_end", "\x00\x7f", "e\u0301")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder():
    return tiny_checkpoint(MODEL, size="tiny-8")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture(scope="module")
def talker(folder):
    return load_talker(folder, {"max_jobs": JOBS})


def utterance(folder, seed: int, frames: int = 20, **asked) -> FrameHistory:
    order = FAMILY.contract(folder, 512).accept({"input": "The river.", "max_new_tokens": frames, **asked})
    request = JobRequested(model=MODEL, input=order.input, params=order.params, seed=seed, owner="o", deadline=0)
    return FrameHistory(f"job_{seed}", request, frames, lead=0, forced=np.empty((0, CODEBOOKS), np.int16))


# --- what a checkpoint says -------------------------------------------------------------------------------------------


def test_the_numbers_are_the_checkpoints(folder):
    stated = config.load_config(folder)
    assert (stated.codebooks, stated.codes, stated.talker.vocab_size) == (CODEBOOKS, CODES, IDS)
    assert stated.assistant is None
    assert FAMILY.codebooks(folder) == CODEBOOKS and FAMILY.codebooks(tiny_checkpoint(MODEL)) == 16
    assert FAMILY.reference(folder, {}) is None


def test_there_are_no_encoders(folder):
    assert all(name.startswith(config.TALKER_PREFIX) for name in load_component(folder, config.TOP))
    assert all(name.startswith("decoder.") for name in load_component(folder, config.SPEECH_TOKENIZER))


@pytest.mark.parametrize(
    "stated", [{"num_quantizers": 16}, {"codebook_size": 2_048}, {"num_quantizers": 16, "codebook_size": 2_048}]
)
def test_a_decoder_of_other_codes_is_refused_by_every_role(copy, stated):
    path = copy / config.SPEECH_TOKENIZER / "config.json"
    restate(path, "decoder_config", **stated)
    restate(path, encoder_valid_num_quantizers=stated.get("num_quantizers", CODEBOOKS))
    for load_part in (FAMILY.contract, FAMILY.talker, FAMILY.acoustic):
        arguments = {FAMILY.contract: (100,), FAMILY.talker: ({"max_jobs": 1}, None)}.get(load_part, ({},))
        with pytest.raises(config.ConfigError, match="draws 8 codes of 1024 a frame, and its speech_tokenizer takes"):
            load_part(copy, *arguments)


def test_an_encoder_of_other_codes_is_refused(copy):
    restate(copy / config.SPEECH_TOKENIZER / "config.json", encoder_valid_num_quantizers=16)
    with pytest.raises(config.ConfigError, match="encoder_valid_num_quantizers is 16, and the decoder has 8"):
        FAMILY.acoustic(copy, {})


def test_a_window_s_budget_counts_the_checkpoints_codes(folder):
    budget = {"acoustic": {"max_num_seqs": 2, "max_num_batched_tokens": 2 * 26 * CODEBOOKS}}
    load(MODEL, folder, overrides=budget)
    with pytest.raises(BadSettings, match=f"set it to {2 * 26 * 16} or more"):
        load(MODEL, tiny_checkpoint(MODEL), overrides=budget)


# --- text -------------------------------------------------------------------------------------------------------------


def test_every_phoneme_is_one_token_and_any_text_comes_back(tmp_path):
    ids = write_phoneme_tokenizer(tmp_path)
    shutil.copy(tiny_checkpoint(MODEL, size="tiny-8") / "config.json", tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert len(phonemes.alphabet()) > 100
    single = [encode(tokenizer, phoneme) for phoneme in phonemes.alphabet()]
    assert all(len(tokens) == 1 for tokens in single) and len({tokens[0] for tokens in single}) == len(single)
    assert len(encode(tokenizer, PHONEMES)) == len(PHONEMES)
    for text in TEXTS:
        tokens = encode(tokenizer, text)
        assert tokenizer.decode(tokens, skip_special_tokens=False) == tokenizer.normalizer.normalize_str(text)
        assert not set(tokens) & set(ids.values())
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(len(vocabulary))) and len(vocabulary) <= PHONEME_VOCABULARY
    assert {tokenizer.id_to_token(id_) for id_ in ids.values()} == {
        "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"
    }  # fmt: skip


def test_a_prompt_of_a_vocabulary_in_which_the_role_is_many_tokens(folder):
    stated, tokenizer = config.load_config(folder), load_tokenizer(folder)
    params = {
        "task_type": config.CUSTOM_VOICE, "voice": "ryan", "language": "English", "non_streaming_mode": True
    }  # fmt: skip
    prompt = build_prompt(
        stated, tokenizer, "The river keeps its own slow time.", params | {"instructions": "Whisper."}
    )
    role = encode(tokenizer, "<|im_start|>assistant\n")
    assert len(role) == 11 and role[0] == stated.im_start
    words = encode(tokenizer, PHONEMES)
    assert prompt.text == [*role, *[stated.tts_pad] * 5, stated.tts_bos, *words, stated.tts_eos, stated.tts_pad]
    assert prompt.codec[:11] == [NOTHING] * 11
    assert prompt.codec[11:17] == [1_130, 1_132, 1_026, 1_133, 2_037, 1_124]
    assert max(prompt.text) < PHONEME_VOCABULARY


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"im_start_token_id": 7}, "<|im_start|> is 332, not 7"),
        ({"assistant_token_id": 7}, "assistant is None, not 7"),
    ],
)
def test_ids_that_are_not_the_tokenizers_are_refused(copy, changes, told):
    restate(copy / "config.json", **changes)
    with pytest.raises(TokenizerError, match="another model's") as refused:
        load_tokenizer(copy)
    assert told in str(refused.value)


def test_a_token_without_an_embedding_is_refused(copy):
    most = len(load_tokenizer(copy).get_vocab())
    restate(copy / "config.json", "talker_config", text_vocab_size=most)
    load_tokenizer(copy)
    restate(copy / "config.json", tts_eos_token_id=0)  # which is the last one
    restate(copy / "config.json", "talker_config", text_vocab_size=most - 1)
    with pytest.raises(TokenizerError, match=f"has token {most - 1}, of {most - 1} at most"):
        load_tokenizer(copy)


# --- frames and sound -------------------------------------------------------------------------------------------------


def test_the_first_code_s_noise_is_that_of_its_place_among_eight(monkeypatch, talker, folder):
    """Nothing above the codes is drawn, but for the end."""
    history = utterance(folder, 1, temperature=10.0, top_k=0)
    for slot in range(JOBS):
        talker.bind(slot, history.request, [])
    hidden = torch.randn(1, JOBS, talker.backbone.config.hidden_size, generator=torch.Generator().manual_seed(0))
    head = talker._head.clone()
    head[CODES + 5] = 1e3 * hidden[0, 1]  # an id that is never drawn would win
    monkeypatch.setattr(talker, "_head", head)
    logits = hidden[0, 1] @ head.T / 10.0
    logits[CODES:END] = logits[END + 1 :] = -torch.inf
    seen = torch.zeros(JOBS, 16, CODEBOOKS, dtype=torch.int64)
    for draw in (2, 3, 11):
        noise = gumbel(draw_keys(torch.tensor(9), torch.tensor(CODEBOOKS * draw)), torch.arange(IDS))
        expected = (logits + noise).argmax()
        who = Drawing(torch.tensor([1]), torch.tensor([9]), torch.tensor([draw]), seen)
        monkeypatch.setattr(talker, "_penalty", torch.ones(JOBS))
        drawn = talker.draw(hidden, torch.zeros(JOBS, CODEBOOKS, dtype=torch.int64), who)
        assert drawn.ended[1] == (expected == END)
        assert drawn.ended[1] or drawn.codes[1, 0] == expected
        assert drawn.codes.shape == (JOBS, CODEBOOKS) and drawn.codes[1, 1:].any()


def test_utterances_are_the_same_alone_and_together(talker, folder):
    def spoken(*seeds: int) -> list[np.ndarray]:
        runner = TorchRunner(talker, max_jobs=JOBS, max_model_len=256)
        histories = [utterance(folder, seed) for seed in seeds]
        for history in histories:
            runner.admit(history, talker.prompts(history.request))
        while any(history.reason is None for history in histories):
            runner.step()
        return [np.stack(history.codes) for history in histories]

    alone = [*spoken(1), *spoken(2)]
    assert [codes.tolist() for codes in spoken(1, 2)] == [codes.tolist() for codes in alone]
    assert all(codes.shape[1] == CODEBOOKS and codes.max() < CODES for codes in alone)
    assert max(codes[:, 1:].max() for codes in alone) > CODES // 2


def test_the_decoder_hears_eight_codes(folder):
    stage = load_acoustic(folder, {})
    codes = np.random.default_rng(0).integers(0, CODES, (25, CODEBOOKS)).astype(np.int16)

    def heard(frames: np.ndarray) -> np.ndarray:
        return stage.window(frames, index=0, last=True, seed=0, state={}, check=lambda: None)[0]

    sound = heard(codes)
    assert sound.shape == (25 * config.FRAME_SAMPLES, 1)
    assert 0.05 < np.sqrt(np.mean(np.square(sound / 32_768))) < 0.5
    for book in range(CODEBOOKS):
        other = codes.copy()
        other[:, book] = (other[:, book] + 1) % CODES
        assert not np.array_equal(heard(other), sound)
    for wrong in (np.zeros((1, 16), np.int16), np.full((1, CODEBOOKS), CODES, np.int16)):
        with pytest.raises(ValueError, match="codes must be"):
            heard(wrong)
