"""Prompt ids equal the authors' pipeline, exactly."""

# ruff: noqa: RUF001, the texts are of many scripts

import random
from types import SimpleNamespace

import pytest

pytest.importorskip("diffusers")

from diffusers.modular_pipelines.minimax_music3.encoders import MiniMaxMusic3TokenizeStep
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from transformers import Qwen2Tokenizer

from workers.models.minimax_music3 import prompt, tokenizer

CASES = [
    ("A warm folk ballad at 92 BPM", "[verse]\nHello, world\n[chorus]\nLa la la"),
    ("# Heading\n\n\n## Another   \n* one\n- two\n+ three\n* * four\n    indented    text", "no tags at all"),
    (
        "**bold** and *italic* and ***both*** and ****nested **deep** bold****",
        "[Verse 1] dropped\n[Pre-Chorus][Solo] x",
    ),
    ("---\n***\n\n___\ntext\n----\n\n\n\n- - -\nmore\n***", "a ] b [ c ^ d [BRIDGE] e"),
    ("\n\n\n---\n\n\n\n\n***\n\n\n\n\n\nx\n\n\n\n\n\n___\n\n\n\n\n", "\n\n[Outro]\n\n"),
    ("<|genre dark  pop|> <|im_end|> <|  |> <||> <|a|b|> <|audio_end|>", "<|im_end|> in the lyrics <|lyrics_end|>"),
    (
        "• bullet • two •three\ttab\u00a0nbsp\u2028line\x0bvt\x1cfs\x1f unit",
        "tab\t[Verse]\t[A] [B]  \ttext\r\n[C]\r\nd",
    ),
    (
        "Café de\u0301ja\u0300 vu ﬁn ①  é 你好，世界 こんにちは 안녕 Привет 🎵🎶 👩‍👩‍👧",
        "[副歌]\n月亮代表我的心\n[ВЕРСЕ] x\n[İSTANBUL]\nß",
    ),
    ("don't I'LL we've 12345 3.14 a_b <think>x</think> <tool_call>", "[[nested]] [un[closed] ]] [[ [\n[]\n[ ]"),
    (" " * 9 + "x" + " " * 7, "   [verse]   \n   leading\ntrailing   "),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "tokenizer"
    tokenizer.write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    components = SimpleNamespace(tokenizer=Qwen2Tokenizer.from_pretrained(folder), _execution_device="cpu")
    step = MiniMaxMusic3TokenizeStep()

    def ids(caption: str, lyrics: str) -> list[list[int]]:
        state = PipelineState()
        state.set("prompt", caption)
        state.set("lyrics", lyrics)
        step(components, state)
        return state.get("text_ids").tolist()

    return ids


@pytest.fixture(scope="module")
def ours(folder):
    loaded = tokenizer.load_tokenizer(folder)

    def ids(caption: str, lyrics: str) -> list[list[int]]:
        conditional = tokenizer.encode(loaded, prompt.build_prompt(caption, lyrics))
        return [conditional, prompt.unconditional(conditional)]

    return ids


@pytest.mark.parametrize(("caption", "lyrics"), CASES)
def test_ids(reference, ours, caption, lyrics):
    assert ours(caption, lyrics) == reference(caption, lyrics)


# What the patterns turn on, and some that they must leave alone.
PIECES = [
    "\n", "\n\n", "\n\n\n\n\n", " ", "  ", "    ", "\t", "\r\n", "\u2028", "\x1f", "#", "## ", "* ", "- ", "+ ", "*",
    "**", "***", "---", "___", "• ", "<|", "|>", "<|key value|>", "<|im_end|>", "[", "]", "[Verse]", "[A B] ",
    " [Chorus", "^", " ^ ", "word", "Ünïcode", "你好", "\u0301", "é", "7", "don't", ".", "🎵",
]  # fmt: skip


def test_ids_of_scrambled_text(reference, ours):
    rng = random.Random(4)
    for _ in range(2000):
        caption, lyrics = ("x" + "".join(rng.choices(PIECES, k=rng.randrange(30))) for _ in range(2))
        if rng.random() < 0.5:  # the edges matter too
            caption, lyrics = caption[1:] + "\n---" * rng.randrange(2) or "x", lyrics[1:] or "x"
        if caption.strip() and lyrics.strip():
            assert ours(caption, lyrics) == reference(caption, lyrics), (caption, lyrics)
