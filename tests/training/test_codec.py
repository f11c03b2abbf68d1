"""Codebooks learn what falls to them, and each one after the first says what the ones before it left."""

import pytest
import torch

from tests.training.small import DECODER
from workers.models.qwen3_tts.config import FRAME_SAMPLES
from workers.training.codec import Codec

# Of so small products, several threads wait for each other: on a busy machine without end.
pytestmark = pytest.mark.usefixtures("one_thread")


def codec():
    torch.manual_seed(0)
    return Codec(DECODER)


def test_sound_is_coded_frame_by_frame_and_comes_back():
    trained = codec()
    sound = torch.randn(2, 6 * FRAME_SAMPLES) * 0.1
    heard = trained(sound)
    assert heard.sound.shape == sound.shape
    assert trained.encode(sound).shape == (2, 6, DECODER.codebooks)
    (heard.sound.square().mean() + heard.loss).backward()
    missing = [name for name, p in trained.named_parameters() if p.requires_grad and p.grad is None]
    assert missing == []


def test_each_book_brings_the_latents_nearer():
    trained = codec()
    latents = torch.randn(4, 256, DECODER.codebook_width)
    target = latents.flatten(0, 1)
    trained.first.input_proj.weight.data = torch.linalg.pinv(
        trained.decoder.quantizer.rvq_first.output_proj.weight[..., 0]
    )
    trained.rest.input_proj.weight.data = torch.linalg.pinv(
        trained.decoder.quantizer.rvq_rest.output_proj.weight[..., 0]
    )
    for _ in range(300):
        trained.quantise(latents)
    trained.eval()
    errors = []
    for kept in (1, 3, 8):
        coded, _ = trained.quantise(latents, torch.full((4,), kept))
        errors.append((coded.latents.flatten(0, 1) - target).square().mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.9 * errors[0]


def test_entries_are_the_means_of_what_fell_to_them():
    trained = codec().train()
    vectors = torch.randn(512, DECODER.codebook_width)
    for _ in range(400):
        trained.first(vectors)
    trained.eval()
    projected = trained.first.input_proj(vectors)
    codes = trained.first(vectors).codes[:, 0]
    entries = trained.first._books[0].means()
    for code in codes.unique():
        torch.testing.assert_close(entries[code], projected[codes == code].mean(dim=0), atol=0.2, rtol=0)


def test_an_entry_that_is_never_used_begins_anew():
    trained = codec().train()
    book = trained.first._books[0]
    book.embedding_sum.data[0] = 1e3  # where nothing falls to it
    vectors = torch.randn(512, DECODER.codebook_width)
    for _ in range(400):
        trained.first(vectors)
    assert book.means()[0].abs().max() < 10


def test_fewer_books_give_other_sound_and_no_nan():
    trained = codec().eval()
    latents = torch.randn(1, 8, DECODER.codebook_width)
    (of_one, first), (of_all, _) = (trained.quantise(latents, torch.tensor([kept])) for kept in (1, 8))
    assert not torch.equal(of_one.latents, of_all.latents)
    assert torch.equal(first, of_one.latents)
    assert torch.equal(trained.quantise(latents)[0].latents, of_all.latents)


def test_what_is_learned_goes_past_the_books_once_and_to_none_that_is_silent():
    trained = codec().eval()
    vectors = torch.randn(5, DECODER.codebook_width, requires_grad=True)
    trained.rest(vectors, torch.tensor([0, 1, 2, 7, 7])).latents.sum().backward()
    out = trained.decoder.quantizer.rvq_rest.output_proj.weight[:, :, 0]
    once = (out.sum(dim=0) @ trained.rest.input_proj.weight).detach()
    assert not vectors.grad[0].any()
    for gradient in vectors.grad[1:]:
        torch.testing.assert_close(gradient, once)


def test_kept_codes_stay_while_the_decoder_goes_on():
    trained = codec().eval()
    sound = torch.randn(2, 4 * FRAME_SAMPLES) * 0.1
    before, codes = trained(sound), trained.encode(sound)
    trained.train()
    trained.keep_codes()
    optimiser = torch.optim.AdamW([one for one in trained.parameters() if one.requires_grad], 1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        (trained(sound).sound - 0.1 * sound).square().mean().backward()
        optimiser.step()
    trained.eval()
    after = trained(sound)
    assert torch.equal(trained.encode(sound), codes)
    assert torch.equal(after.latents, before.latents)
    assert not torch.equal(after.sound, before.sound)
