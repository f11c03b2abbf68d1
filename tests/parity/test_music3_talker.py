"""The talker equals the authors' pipeline, on the same random checkpoint and with the same draws.

Tolerances are relative to the reference's RMS; the largest difference seen is 2e-6.
"""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("diffusers")

import torch
from diffusers import MiniMaxMusic3ConditionEncoder, MiniMaxMusic3RVQDepthDecoder
from diffusers.modular_pipelines.minimax_music3 import encoders
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from transformers import Qwen3ForCausalLM

from broker_schemas.events import JobRequested
from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.minimax_music3 import config
from workers.models.minimax_music3.talker import load_talker
from workers.runners.torch_runner import TorchRunner
from workers.talker.frames import FrameHistory
from workers.talker.sampling import draw_keys, draw_top_k

TOLERANCE = 1e-5
CANDIDATES = torch.tensor([config.AUDIO_END, *range(config.CODE_OFFSET, config.MIN_VOCABULARY)])


@pytest.fixture(scope="module")
def folder():
    torch.set_num_threads(1)
    return tiny_checkpoint(seed=3)


@pytest.fixture
def talker(folder):
    return load_talker(folder, {})


@pytest.fixture
def reference(folder):
    return SimpleNamespace(
        language_model=Qwen3ForCausalLM.from_pretrained(folder / config.LANGUAGE_MODEL, dtype=torch.float32),
        rvq_depth_decoder=MiniMaxMusic3RVQDepthDecoder.from_pretrained(folder / config.DEPTH_DECODER),
        condition_encoder=MiniMaxMusic3ConditionEncoder.from_pretrained(folder / config.CONDITION_ENCODER),
        frame_rate=25.0,
    )


def song(seed: int, frames: int, lyrics: str = "[verse]\nla la la") -> FrameHistory:
    params = {"instructions": "a slow waltz", "max_new_tokens": frames, "async_chunk": True}
    request = JobRequested(
        model="minimax_music3", input=lyrics, params=params, seed=seed, owner="o", deadline=0, ttl_ms=1
    )
    return FrameHistory(f"job_{seed}", request, frames, config.LEAD, np.empty((0, 8), np.int16))


def sing(talker, history: FrameHistory, **kwargs) -> FrameHistory:
    runner = TorchRunner(talker, max_jobs=2, max_model_len=2048, **kwargs)
    runner.admit(history, talker.prompts(history.request))
    while history.reason is None:
        runner.step()
    return history


def sing_by_reference(monkeypatch, reference, talker, seed: int, frames: int, lyrics: str = "[verse]\nla la la"):
    """The authors' loop with our draws: (codes (draws, 8), conditioning (frames, hidden), None where no frames)."""
    drawn: list[int] = []

    def sample(logits, generator):
        keys = draw_keys(torch.tensor([seed]), torch.tensor(len(drawn)))
        semantic = len(drawn) % config.CODEBOOKS == 0
        code = draw_top_k(logits[:, CANDIDATES] if semantic else logits, keys, config.TOP_K)
        drawn.append(int(code) - 1 if semantic else int(code))
        return CANDIDATES[code] if semantic else code

    monkeypatch.setattr(encoders, "_sample_top_k", sample)
    state = PipelineState()
    state.set("text_ids", torch.tensor(talker.prompts(song(seed, frames, lyrics).request)))
    state.set("audio_duration", (frames + 0.5) / 25)
    try:
        encoders.MiniMaxMusic3AutoregressiveStep()(reference, state)
    except ValueError as error:
        assert "zero audio frames" in str(error)
        return np.empty((0, 8)), None
    codes = np.array(drawn[: len(drawn) // 8 * 8]).reshape(-1, 8)
    return codes, mix(reference.condition_encoder, state.get("frame_hiddens"))


def mix(encoder, hiddens: torch.Tensor) -> np.ndarray:
    """What the condition encoder makes of (1, frames, 8 * hidden) before its convolution."""
    seen = []
    handle = encoder.proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        encoder(hiddens)
    handle.remove()
    return seen[0][0].T.numpy()


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the reference's RMS."""
    return float(np.abs(ours - theirs).max() / np.sqrt(np.mean(theirs**2)))


@pytest.mark.parametrize(("seed", "frames"), [(1, 120), (2, 60), (2**63 - 1, 40)])
def test_codes_and_conditioning(monkeypatch, reference, talker, seed, frames):
    ours = sing(talker, song(seed, frames))
    codes, conditioning = sing_by_reference(monkeypatch, reference, talker, seed, frames)
    assert np.array_equal(np.stack(ours.codes), codes)
    assert relative(ours.take_conditioning(ours.frames), conditioning) < TOLERANCE


def test_a_prompt_of_many_chunks(monkeypatch, reference, talker):
    lyrics = "[verse]\n" + "one two three four five six seven\n" * 40
    ours = sing(talker, song(5, 8, lyrics), prefill_chunk=48)
    codes, conditioning = sing_by_reference(monkeypatch, reference, talker, 5, 8, lyrics)
    assert np.array_equal(np.stack(ours.codes), codes)
    assert relative(ours.take_conditioning(ours.frames), conditioning) < TOLERANCE


def test_end_and_budget(monkeypatch, reference, talker):
    """Frame count and reason, where songs end at once, before their first frame, within and at their budget."""
    with torch.no_grad():
        reference.language_model.lm_head.weight[config.AUDIO_END] *= -5
    talker._head[0] *= -5
    seen = set()
    for seed in range(30):
        frames = 1 + seed % 9
        lyrics = "la " * (seed + 1)
        ours = sing(talker, song(seed, frames, lyrics))
        codes, conditioning = sing_by_reference(monkeypatch, reference, talker, seed, frames, lyrics)
        assert ours.frames == (0 if conditioning is None else len(conditioning))
        assert ours.reason == ("stop" if ours.frames < frames else "length")
        if ours.frames:
            assert np.array_equal(np.stack(ours.codes), codes)
        seen.add((ours.reason, min(len(ours.codes), 2)))
    assert {("stop", 0), ("stop", 1), ("stop", 2), ("length", 2)} <= seen


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 200])
def test_hidden_states_of_the_backbone(reference, talker, tokens):
    generator = torch.Generator().manual_seed(tokens)
    prompts = torch.randint(0, 151_643, (2, tokens), generator=generator)
    history = song(1, 6)
    history.forced = torch.randint(0, 1024, (5, 8), generator=generator).numpy().astype(np.int16)
    runner = TorchRunner(talker, max_jobs=3, max_model_len=300)
    runner.admit(history, prompts.tolist())
    while history.draw < len(history.forced):
        runner.step()
    ours = runner._hidden[:, 0]

    model = reference.language_model
    with torch.no_grad():
        codes = torch.from_numpy(history.forced.astype(np.int64))
        depth = reference.rvq_depth_decoder
        embeds = [encoders._embed_audio_frame(model, depth, frame.repeat(2, 1)) for frame in codes]
        embeds = torch.cat([model.model.embed_tokens(prompts), *embeds], dim=1)
        theirs = model.model(inputs_embeds=embeds).last_hidden_state[:, -1]
    assert relative(ours.numpy(), theirs.numpy()) < TOLERANCE
