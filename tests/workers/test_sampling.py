"""The draw is a pure function of (seed, position, candidate)."""

import math
import random
import struct

import pytest
import torch

from workers.talker import sampling

UINT32_MAX = 2**32 - 1


def murmur3_bytes(key: bytes, seed: int = 0) -> int:
    """Austin Appleby's MurmurHash3_x86_32, on bytes."""
    h = seed
    for (k,) in struct.iter_unpack("<I", key):
        k = k * 0xCC9E2D51 % 2**32
        k = (k << 15 | k >> 17) % 2**32
        h ^= k * 0x1B873593 % 2**32
        h = (h << 13 | h >> 19) % 2**32
        h = (h * 5 + 0xE6546B64) % 2**32
    h ^= len(key)
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def expected_gumbel(seed: int, position: int, candidate: int) -> float:
    u = murmur3_bytes(struct.pack("<QII", seed, position, candidate)) / UINT32_MAX
    log_u = -1.7976931348623157e308 if u == 0 else min(math.log(u), -(2.0**-32))
    return -math.log(-log_u)


def test_the_judge_knows_murmur3():
    # Published test vectors of MurmurHash3_x86_32.
    assert murmur3_bytes(b"") == 0
    assert murmur3_bytes(b"\xff\xff\xff\xff") == 0x76293B50
    assert murmur3_bytes(b"\x21\x43\x65\x87") == 0xF55B516B
    assert murmur3_bytes(b"\x00\x00\x00\x00") == 0x2362F9DE


def test_hash_equals_murmur3():
    rng = random.Random(1)
    keys = [(rng.randrange(2**63), rng.randrange(2**32), rng.randrange(2**14)) for _ in range(500)]
    keys += [(0, 0, 0), (2**63 - 1, 72_007, 16_384), (2**32, 1, 1), (2**31, 2**31, 1)]
    seeds, positions, candidates = (torch.tensor(column) for column in zip(*keys, strict=True))
    hashes = sampling.murmur3(seeds, seeds >> 32, positions, candidates).tolist()
    assert hashes == [murmur3_bytes(struct.pack("<QII", *key)) for key in keys]


def test_a_hash_of_numbers_alone_is_refused():
    with pytest.raises(TypeError, match="make one of the blocks a tensor"):
        sampling.murmur3(1, 2)


def test_gumbel_equals_the_formula():
    rng = random.Random(2)
    keys = [(rng.randrange(2**63), rng.randrange(72_008), rng.randrange(16_385)) for _ in range(500)]
    seeds, positions, candidates = (torch.tensor(column) for column in zip(*keys, strict=True))
    noise = sampling.gumbel(sampling.draw_keys(seeds, positions), candidates)
    assert noise.dtype == torch.float64
    torch.testing.assert_close(
        noise, torch.tensor([expected_gumbel(*key) for key in keys], dtype=torch.float64), rtol=1e-14, atol=1e-14
    )


@pytest.mark.parametrize("hashed", [0, UINT32_MAX])
def test_gumbel_is_finite_at_both_ends(monkeypatch, hashed):
    monkeypatch.setattr(sampling, "_finish", lambda state, blocks: torch.tensor([hashed]))
    noise = sampling.gumbel(torch.tensor([1]), torch.tensor([1])).item()
    assert noise == pytest.approx(-math.log(1.7976931348623157e308) if hashed == 0 else 32 * math.log(2))


def brute_force(logits: list[float], seed: int, position: int, k: int) -> int:
    threshold = sorted(logits, reverse=True)[k - 1]
    scores = [
        value + expected_gumbel(seed, position, candidate) if value >= threshold else -math.inf
        for candidate, value in enumerate(logits)
    ]
    return scores.index(max(scores))


def test_draw_equals_brute_force():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(64, 1024, generator=generator) * 2.5
    seeds = torch.randint(0, 2**63 - 1, (64,), generator=generator)
    positions = torch.randint(0, 72_008, (64,), generator=generator)
    drawn = sampling.draw_top_k(logits, sampling.draw_keys(seeds, positions), 50).tolist()
    assert drawn == [
        brute_force(*job, 50) for job in zip(logits.tolist(), seeds.tolist(), positions.tolist(), strict=True)
    ]
    assert len(set(drawn)) > 32


def test_ties_with_the_last_stay_in():
    logits = torch.full((4000, 100), -30.0)
    logits[:, 10:13] = 1.0  # one above the k-th, and three that tie with it
    logits[:, 5] = 1.5
    drawn = sampling.draw_top_k(logits, sampling.draw_keys(torch.tensor(7), torch.arange(4000)), 2)
    assert set(drawn.tolist()) == {5, 10, 11, 12}


def test_frequencies_are_the_softmax_of_the_kept():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])
    draws = 40_000
    drawn = sampling.draw_top_k(logits.expand(draws, 5), sampling.draw_keys(torch.tensor(11), torch.arange(draws)), 3)
    shares = torch.bincount(drawn, minlength=5) / draws
    torch.testing.assert_close(shares[:3], torch.softmax(logits[:3], 0), atol=0.01, rtol=0)
    assert shares[3:].tolist() == [0, 0]


def test_draws_do_not_depend_on_the_batch():
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(16, 16_385, generator=generator) * 2
    seeds = torch.randint(0, 2**63 - 1, (16,), generator=generator)
    keys = sampling.draw_keys(seeds, torch.arange(0, 128, 8))
    together = sampling.draw_top_k(logits, keys, 50)
    for row in range(16):
        assert sampling.draw_top_k(logits[row : row + 1], keys[row : row + 1], 50) == together[row]


def test_noise_does_not_depend_on_how_many_candidates_need_it():
    rows, candidates = torch.randint(0, 8, (97,)), torch.randint(0, 16_385, (97,))
    keys = sampling.draw_keys(torch.arange(8) * 2**40 + 5, torch.arange(8) * 8)
    full = sampling.gumbel(keys[:, None], torch.arange(16_385))
    assert torch.equal(sampling.gumbel(keys[rows], candidates), full[rows, candidates])


def test_draw_among_named_candidates():
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(32, 1024, generator=generator)
    keys = sampling.draw_keys(torch.arange(32), torch.tensor(9))
    values, candidates = sampling.most_likely(logits, 50)
    assert torch.equal(sampling.draw_top_k(values, keys, 50, candidates), sampling.draw_top_k(logits, keys, 50))


@pytest.mark.parametrize("keep", [sampling.most_likely, sampling._mask_others, sampling._pick])
def test_most_likely_keeps_ties_and_no_more(keep):
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]])
    values, candidates = keep(logits, 2)
    kept = [set(row[value > -torch.inf].tolist()) for row, value in zip(candidates, values, strict=True)]
    assert kept == [{0, 2, 3, 4}, {0, 1}]
    kept = values > -torch.inf
    assert torch.equal(logits.gather(-1, candidates)[kept], values[kept])


def test_draws_of_fewer_candidates_than_are_kept():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]]).expand(500, 3)
    drawn = sampling.draw_top_k(logits, sampling.draw_keys(torch.tensor(5), torch.arange(500)), 50)
    assert set(drawn.tolist()) == {0, 1}


def test_guidance():
    torch.testing.assert_close(sampling.guide(torch.tensor(3.0), torch.tensor(1.0), 1.5), torch.tensor(4.0))
