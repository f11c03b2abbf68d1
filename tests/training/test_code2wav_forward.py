"""What is trained is what streams."""

import copy

import pytest
import torch

from tests.training.small import DECODER
from workers.models.qwen3_tts.code2wav import fold
from workers.training.code2wav_forward import sound_of
from workers.training.codec import Codec


@pytest.mark.parametrize("cuts", [(40,), (1, 2, 4, 8, 16, 9), (25, 15)])
def test_a_trained_decoder_streams_what_it_was_trained_to_say(cuts):
    torch.manual_seed(0)
    codec = Codec(DECODER).eval()
    for parameter in codec.decoder.parameters():  # gains of one and biases of zero would hide what is left out
        if parameter.dim() == 1 and parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0.3, 0.2)
    last = codec.decoder.decoder[-1].conv
    last.weight.data *= 0.1  # the served decoder clamps: so quiet, it has nothing to clamp
    last.bias.data *= 0.1
    with torch.no_grad():
        coded, _ = codec.quantise(torch.randn(2, 40, DECODER.codebook_width))
        trained = sound_of(codec.decoder, coded.latents)
    decoder = fold(copy.deepcopy(codec.decoder))
    state, pieces, start = decoder.init_state(2), [], 0
    for frames in cuts:
        sound, state = decoder.decode(coded.codes[:, start : start + frames], state)
        pieces.append(sound)
        start += frames
    streamed = torch.cat(pieces, dim=1)
    assert streamed.abs().max() < 1
    torch.testing.assert_close(streamed, trained, atol=1e-4 * trained.std().item(), rtol=0)
