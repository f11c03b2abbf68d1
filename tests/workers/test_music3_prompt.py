"""The tokenizer folder, and that hostile text costs no more than its length. For the ids see tests/parity."""

import json
import shutil
import time

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from workers.models.minimax_music3 import config
from workers.models.minimax_music3.prompt import build_prompt, clean_caption, normalize_lyrics, unconditional
from workers.models.minimax_music3.tokenizer import encode, load_tokenizer, write_tokenizer

TEXT = build_prompt("Café, 92 BPM: don't 你好 🎵 <think> e\u0301", "[Verse]\nIt's 1999\n\n  и да <|fim_pad|>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "tokenizer")


def test_special_tokens_have_their_ids(folder):
    tokenizer = load_tokenizer(folder)
    assert encode(tokenizer, "".join(config.SPECIAL_TOKENS)) == list(config.SPECIAL_TOKENS.values())
    assert encode(tokenizer, "<|endoftext|>") == [151_643]
    assert tokenizer.get_vocab_size() == config.CODE_OFFSET


def test_text_ids_are_qwen_s(folder):
    # Published examples of Qwen's tokenizer.
    tokenizer = load_tokenizer(folder)
    assert encode(tokenizer, "Hello world") == [9707, 1879]
    assert encode(tokenizer, "你好") == [108386]


@pytest.mark.parametrize("kind", [AutoTokenizer, Qwen2Tokenizer])
def test_transformers_reads_the_folder(folder, kind):
    assert kind.from_pretrained(folder)(TEXT)["input_ids"] == encode(load_tokenizer(folder), TEXT)


def test_a_folder_without_tokenizer_json(folder, copy):
    (copy / "tokenizer.json").unlink()
    assert encode(load_tokenizer(copy), TEXT) == encode(load_tokenizer(folder), TEXT)
    (copy / "merges.txt").unlink()
    with pytest.raises(config.ConfigError, match=r"merges\.txt"):
        load_tokenizer(copy)


def test_another_model_s_tokenizer_is_refused(copy):
    stated = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    for token in stated["added_tokens"]:
        if token["content"] == "<|audio_cfg|>":
            token["content"] = "<|vision_pad|>"
    (copy / "tokenizer.json").write_text(json.dumps(stated), encoding="utf-8")
    with pytest.raises(config.ConfigError, match=r"<\|audio_cfg\|> is None, not 151654"):
        load_tokenizer(copy)


def test_a_broken_file_is_named(copy):
    (copy / "tokenizer.json").write_text('{"version"')
    with pytest.raises(config.ConfigError, match="cannot be read"):
        load_tokenizer(copy)


def test_the_unconditional_twin(folder):
    ids = encode(load_tokenizer(folder), TEXT)
    assert unconditional(ids) == [151_644] + [151_654] * (len(ids) - 3) + [151_645, 151_669]


@pytest.mark.parametrize("piece", ["\n", "---\n", "\n---\n\n", "*", "**a", "<|", "- ", "* ", "#", "\t\n", " \n---"])
def test_cleaning_takes_no_more_than_linear_time(piece):
    begun = time.process_time()
    clean_caption("x" + piece * (20_000 // len(piece)))
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("piece", ["[", "]", "[a", "[a] ", " [", "[\n", "[]", " ^ "])
def test_normalising_takes_no_more_than_linear_time(piece):
    begun = time.process_time()
    normalize_lyrics("x" + piece * (200_000 // len(piece)))
    assert time.process_time() - begun < 3
