"""A listener learns which phonemes are spoken from the latents of codes, and teaches the encoder to tell them."""

import numpy as np
import pytest
import torch

from tests.training.small import DECODER
from workers.models.qwen3_tts.config import FRAME_SAMPLES
from workers.training.codec import Codec
from workers.training.corpus import Speech, SpeechWriter
from workers.training.lines import Line
from workers.training.listener import Listener
from workers.training.teacher import Spoken

pytestmark = pytest.mark.usefixtures("one_thread")


def test_what_is_heard_early_and_late_in_each_frame(tmp_path):
    with SpeechWriter(tmp_path) as speech:
        for name, phonemes, ends in (("a", "ba", (0.5, 3.0)), ("b", "cab", (1.0, 1.5, 2.0))):
            frames = int(ends[-1])
            pcm = np.zeros(frames * FRAME_SAMPLES, np.int16)
            speech.add(Spoken(Line(name, "", (phonemes,)), pcm, np.array(ends) * FRAME_SAMPLES))
    heard, phonemes = Speech(tmp_path).phonemes()
    a, b, c = range(phonemes)
    assert heard.tolist() == [[b, a], [a, a], [a, a], [c, c], [a, b]]


def test_it_teaches_the_encoder():
    torch.manual_seed(0)
    codec, listener = Codec(DECODER).train(), Listener(DECODER.codebook_width, phonemes=2)
    sound = torch.stack([torch.randn(12 * FRAME_SAMPLES) * 0.1, torch.zeros(12 * FRAME_SAMPLES)])
    phonemes = torch.tensor([0, 1])[:, None, None].expand(2, 12, 2)

    def misheard():
        coded, first = codec.quantise(codec.encoder(sound))
        return listener(first, coded.latents, phonemes)

    misheard().backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in codec.encoder.out.parameters())
    optimiser = torch.optim.Adam([*codec.encoder.parameters(), *listener.parameters()], 1e-3)
    before = misheard().item()
    for _ in range(30):
        optimiser.zero_grad()
        misheard().backward()
        optimiser.step()
    assert misheard().item() < 0.5 * before
