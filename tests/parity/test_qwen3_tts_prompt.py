"""Prompts equal the authors' package: its embeddings are those of our prompt, out of the checkpoint's own tables.

Two tokens never share an embedding, so that an embedding within 1e-5 of RMS is the same token.
"""

# ruff: noqa: RUF001, the texts are of many scripts

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from tests.parity.judge import ask_judge, needs_judge
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.checkpoint import make_checkpoint
from workers.models.qwen3_tts.prompt import NOTHING, Prompt, build_prompt
from workers.models.qwen3_tts.tokenizer import load_tokenizer

pytestmark = needs_judge

TOLERANCE = 1e-5
CODEBOOKS, CODES = 16, 2_048
TEXTS = (
    "Hello, world.",
    "你好，世界！今天 2026 年 11 月 30 日。",
    "x",
    "\n\n  leading and trailing \r\n\t ",
    "don't I'LL camelCase HTTPServer a/b https://x.y/z?q=1 3.14 e\u0301te\u0301 ﬁn ①",
    "こんにちは 안녕 Привет عربى 🎵 👩‍👩‍👧 <think>x</think> <|im_end|> <tts_pad>",
)


def custom_voice(text: str, **changes) -> tuple[str, dict, dict]:
    params = {"task_type": "custom_voice", "voice": "Vivian", "language": "Auto", "instructions": ""}
    params |= {"non_streaming_mode": True} | changes
    arguments = {"text": text, "speaker": params["voice"], "language": params["language"]}
    arguments |= {"instruct": params["instructions"], "non_streaming_mode": params["non_streaming_mode"]}
    return "generate_custom_voice", arguments, params


def voice_design(text: str, **changes) -> tuple[str, dict, dict]:
    params = {"task_type": "voice_design", "language": "Auto", "instructions": "An old man.\n 低沉"}
    params |= {"non_streaming_mode": True} | changes
    arguments = {"text": text, "language": params["language"], "instruct": params["instructions"]}
    return "generate_voice_design", arguments | {"non_streaming_mode": params["non_streaming_mode"]}, params


def clone(text: str, ref_text: str | None, **changes) -> tuple[str, dict, dict]:
    params = {"task_type": "base", "language": "Auto", "instructions": "", "non_streaming_mode": False} | changes
    arguments = {"text": text, "language": params["language"], "ref_text": ref_text}
    arguments |= {"non_streaming_mode": params["non_streaming_mode"]}
    params |= {"ref_text": ref_text or "", "x_vector_only_mode": ref_text is None}
    return "generate_voice_clone", arguments, params


BOTH = ({"non_streaming_mode": True}, {"non_streaming_mode": False})
ASKED = {
    "tiny": [
        *(custom_voice(text, **mode) for text in TEXTS for mode in BOTH),
        custom_voice("Hello.", language="English", voice="RYAN"),
        custom_voice("Hello.", language="german", instructions="Angry, and fast.\nVery."),
        custom_voice("你好。", voice="dylan"),
        custom_voice("你好。", voice="eric", language="Chinese", non_streaming_mode=False),
        custom_voice("Hello.", voice="Eric", language="English"),
    ],
    "tiny-small": [custom_voice("Hello.", instructions="A small model hears no instructions.")],
    "tiny-design": [
        *(voice_design(text, **mode) for text in TEXTS[:2] for mode in BOTH),
        voice_design("Hello.", language="Japanese", instructions=""),
    ],
    "tiny-base": [
        *(clone(text, None, **mode) for text in TEXTS[:3] for mode in BOTH),
        *(clone(text, "As I said, 就这样。", **mode) for text in TEXTS for mode in BOTH),
        clone("A text that is a good deal longer than the reference's few frames. " * 3, "So.", language="French"),
    ],
}
FRAMES = 23  # of each reference


def reference_of(index: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(index)
    return drawn.standard_normal(64, dtype=np.float32), drawn.integers(0, CODES, (FRAMES, CODEBOOKS))


@pytest.fixture(scope="module", params=ASKED)
def judged(request, tmp_path_factory) -> tuple[Path, list[dict], list[str], dict[str, np.ndarray]]:
    """The checkpoint, each request's params and text, and the reference's embeddings."""
    asked, folder = ASKED[request.param], tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(folder, request.param.replace("-small", ""), 0)
    if request.param == "tiny-small":
        stated = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(stated | {"tts_model_size": config.SMALL}))
    question = {"requests": np.array(json.dumps([[method, arguments] for method, arguments, _ in asked]))}
    for index, (method, _, params) in enumerate(asked):
        if method == "generate_voice_clone":
            question[f"{index}/speaker"], codes = reference_of(index)
            if not params["x_vector_only_mode"]:
                question[f"{index}/codes"] = codes
    paths = tmp_path_factory.mktemp("prompts") / "asked.npz", tmp_path_factory.mktemp("prompts") / "built.npz"
    np.savez(paths[0], **question)
    ask_judge("prompts", folder, *paths)
    with np.load(paths[1]) as built:
        texts = [arguments["text"] for _, arguments, _ in asked]
        return folder, [params for _, _, params in asked], texts, dict(built)


class Tables:
    """The checkpoint's embedding tables."""

    def __init__(self, folder: Path) -> None:
        self._weights = load_file(folder / "model.safetensors")

    def text(self, ids: list[int]) -> Tensor:
        w, at = self._weights, "talker.text_projection"
        hidden = F.linear(
            w["talker.model.text_embedding.weight"][ids], w[f"{at}.linear_fc1.weight"], w[f"{at}.linear_fc1.bias"]
        )
        return F.linear(F.silu(hidden), w[f"{at}.linear_fc2.weight"], w[f"{at}.linear_fc2.bias"])

    def codec(self, id_: int) -> Tensor:
        return self._weights["talker.model.codec_embedding.weight"][id_]

    def frame(self, codes: np.ndarray) -> Tensor:
        residual = "talker.code_predictor.model.codec_embedding"
        rest = (self._weights[f"{residual}.{book}.weight"][int(code)] for book, code in enumerate(codes[1:]))
        return sum(rest, self.codec(int(codes[0])))

    def prompt(self, prompt: Prompt, speaker: np.ndarray, codes: np.ndarray) -> Tensor:
        embedded = self.text(prompt.text)
        for position, id_ in enumerate(prompt.codec):
            if id_ != NOTHING:
                embedded[position] += self.codec(id_)
        if prompt.speaker is not None:
            embedded[prompt.speaker] += torch.from_numpy(speaker)
        for position, frame in zip(prompt.frames, codes[: len(prompt.frames)], strict=True):
            embedded[position] += self.frame(frame)
        return embedded


def assert_same(ours: Tensor, judge: np.ndarray, what: str) -> None:
    assert tuple(ours.shape) == judge.shape, what
    apart = (ours - torch.from_numpy(judge)).abs().max()
    assert apart <= TOLERANCE * np.sqrt(np.mean(judge**2)), what


def test_prompts(judged) -> None:
    folder, requests, texts, built = judged
    stated, tokenizer, tables = config.load_config(folder), load_tokenizer(folder), Tables(folder)
    for index, (params, text) in enumerate(zip(requests, texts, strict=True)):
        frames = FRAMES if params.get("x_vector_only_mode") is False else 0
        prompt = build_prompt(stated, tokenizer, text, params, frames)
        what = f"{params}, {text!r}"
        assert_same(tables.prompt(prompt, *reference_of(index)), built[f"{index}/prompt"], what)
        trailing = prompt.trailing or [stated.tts_pad]
        assert_same(tables.text(trailing), built[f"{index}/trailing"], what)
