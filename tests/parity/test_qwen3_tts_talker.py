"""The talker equals the authors' package on the same random checkpoint, in float32.

Hidden states differ by at most 1e-5 of the reference's RMS; codes are equal.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from broker_schemas.events import JobRequested
from tests.parity.judge import ask_judge, needs_judge
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import Draws
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.talker import SpeechTalker, load_talker
from workers.runners.torch_runner import TorchRunner
from workers.talker.frames import FrameHistory
from workers.talker.sampling import draw_keys, gumbel

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    needs_judge,
]

TOLERANCE = 1e-5
END, IDS, CODEBOOKS = 2150, 3072, 16
TEXT = "Streams carry events. 事件按顺序到达。 Every process can be killed at any moment!"
DEFAULTS = {
    "task_type": "custom_voice",
    "voice": "ryan",
    "language": "English",
    "instructions": "",
    "non_streaming_mode": True,
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "async_chunk": True,
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint("qwen3_tts", seed=3)


@pytest.fixture(scope="module")
def endless(folder, tmp_path_factory) -> Path:
    """The same checkpoint, but the end is never the likeliest."""
    copy = tmp_path_factory.mktemp("endless") / "checkpoint"
    shutil.copytree(folder, copy)
    weights = load_file(copy / "model.safetensors")
    weights["talker.codec_head.weight"][END] = 0
    save_file(weights, copy / "model.safetensors")
    return copy


def speak(
    folder: Path, seed: int, frames: int, text: str, params: dict
) -> tuple[FrameHistory, np.ndarray, SpeechTalker]:
    """Our talker: what it said, and the hidden states (frames, hidden) that it drew from."""
    talker = load_talker(folder, {"max_jobs": 2})
    params = DEFAULTS | params | {"max_new_tokens": frames}
    request = JobRequested(model="qwen3_tts", input=text, params=params, seed=seed, owner="o", deadline=0, ttl_ms=1)
    history = FrameHistory("job", request, frames, config.LEAD, np.empty((0, CODEBOOKS), np.int16))
    runner = TorchRunner(talker, max_jobs=2, max_model_len=512)
    runner.admit(history, talker.prompts(request))
    seen, draw = [], talker.draw

    def see(hidden: torch.Tensor, *others) -> Draws:
        seen.append(hidden[0, 0].numpy().copy())
        return draw(hidden, *others)

    talker.draw = see
    while history.reason is None:
        runner.step()
    return history, np.stack(seen), talker


def ask(folder: Path, tmp_path: Path, frames: int, text: str, params: dict, noise: np.ndarray | None = None) -> dict:
    """The authors': `codes`, `hidden`, `prompt` and `trailing`."""
    params = DEFAULTS | params
    request = {
        "text": text,
        "speaker": params["voice"],
        "instruct": params["instructions"],
        "subtalker_dosample": params["do_sample"],
        "max_new_tokens": frames + 1,  # it draws a frame's residual codes with the next frame's first one
        **{name: params[name] for name in ("language", "non_streaming_mode", "do_sample", "repetition_penalty")},
        **{f"{of}{name}": params[f"{of}{name}"] for of in ("", "subtalker_") for name in _WAYS},
    }
    asked, said = tmp_path / "asked.npz", tmp_path / "said.npz"
    np.savez(asked, request=json.dumps(request), **({} if noise is None else {"noise": noise}))
    ask_judge("speak", folder, asked, said)
    with np.load(said) as arrays:
        return dict(arrays)


_WAYS = ("temperature", "top_k", "top_p")


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the reference's RMS."""
    return float(np.abs(ours - theirs).max() / np.sqrt(np.mean(theirs**2)))


@pytest.mark.parametrize("non_streaming", [True, False], ids=["whole text", "spread text"])
def test_greedy_codes_of_200_frames(endless, tmp_path, non_streaming):
    params = {"do_sample": False, "non_streaming_mode": non_streaming, "repetition_penalty": 1.3}
    history, hidden, talker = speak(endless, 1, 200, TEXT, params)
    theirs = ask(endless, tmp_path, 200, TEXT, params)
    assert theirs["codes"].shape == (200, CODEBOOKS)
    assert np.array_equal(np.stack(history.codes), theirs["codes"])
    assert len(np.unique(theirs["codes"], axis=0)) > 100  # greedy, but not stuck
    length = len(theirs["prompt"])
    assert relative(talker.embed_prompt(0, 0, 0, length).numpy(), theirs["prompt"]) < TOLERANCE
    assert relative(hidden, theirs["hidden"]) < TOLERANCE


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"temperature": 1.4, "top_k": 0, "top_p": 0.8, "subtalker_temperature": 0.5, "subtalker_top_p": 0.7},
        {"top_k": 300, "repetition_penalty": 2.0, "subtalker_temperature": 1.5, "subtalker_top_k": 0},
        {"voice": "dylan", "language": "Auto", "instructions": "Very slowly.", "non_streaming_mode": False},
    ],
    ids=["published", "top-p", "hot", "dialect"],
)
def test_sampled_codes_with_the_same_noise(folder, tmp_path, way):
    """All processors and their order, and where utterances end, as transformers has them."""
    frames, seed = 24, 5
    positions = torch.arange((frames + 1) * CODEBOOKS)
    noise = gumbel(draw_keys(torch.tensor(seed), positions)[:, None], torch.arange(IDS))
    history, _, _ = speak(folder, seed, frames, TEXT, way)
    theirs = ask(folder, tmp_path, frames, TEXT, way, noise.view(frames + 1, CODEBOOKS, IDS).numpy())
    assert len(theirs["codes"]) >= 2
    assert np.array_equal(np.stack(history.codes), theirs["codes"])
    assert history.reason == ("length" if len(theirs["codes"]) == frames else "stop")
