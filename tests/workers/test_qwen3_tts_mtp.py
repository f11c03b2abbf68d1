"""A frame's residual codes: drawn in the step that drew the first one, each request by its own parameters alone."""

import pytest
import torch
from torch.nn import functional as F

from workers.models.family import Drawing
from workers.models.qwen3_tts.code_predictor import CodePredictor, attended_in_sums
from workers.models.qwen3_tts.mtp import MTPState, refuse_settings
from workers.runners.torch_qwen3 import Qwen3Config

CODEBOOKS, CODES, WIDTH, JOBS = 16, 40, 24, 4
CONFIG = Qwen3Config(
    vocab_size=CODES,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    attention_bias=False,
    tie_word_embeddings=False,
)
PARAMS = {"do_sample": True, "subtalker_temperature": 0.9, "subtalker_top_k": 10, "subtalker_top_p": 1.0}
GREEDY = PARAMS | {"do_sample": False}


def new_predictor(width: int = WIDTH) -> CodePredictor:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    predictor = CodePredictor(CONFIG, CODEBOOKS, width).requires_grad_(False)
    for parameter in predictor.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim > 1 else 0.1) + 0.01)
    return predictor


@pytest.fixture
def first_codes():
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def mtp(first_codes):
    state = MTPState(new_predictor().fuse(), first_codes, JOBS)
    for slot in range(JOBS):
        state.bind(slot, PARAMS)
    return state


def step(seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and codes of a step, the residual codes still -1 where they are not drawn."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.zeros(JOBS, CODEBOOKS, dtype=torch.int64)
    codes[:, 0] = torch.randint(0, 64, (JOBS,), generator=generator)
    return torch.randn(JOBS, WIDTH, generator=generator), codes


def drawing(slots: list[int], seeds: list[int], draws: list[int], repeats: list[bool] | None = None) -> Drawing:
    return Drawing(
        slots=torch.tensor(slots, dtype=torch.int64),
        seeds=torch.tensor(seeds, dtype=torch.int64),
        draws=torch.tensor(draws, dtype=torch.int64),
        history=torch.zeros(JOBS, 0, CODEBOOKS, dtype=torch.int64),
        repeats=None if repeats is None else torch.tensor(repeats),
    )


def drawn(mtp: MTPState, hidden: torch.Tensor, codes: torch.Tensor, who: Drawing) -> torch.Tensor:
    codes = codes.clone()
    mtp.post_sample(hidden, codes, who)
    return codes


@pytest.mark.parametrize("width", [WIDTH, CONFIG.hidden_size])
def test_greedy_codes_are_those_of_the_whole_frame_computed_at_once(width):
    """Against the plain definition: all 16 positions in one causal pass, no cache, no fused table."""
    plain, first = new_predictor(width), torch.randn(64, width)
    hidden, codes = step()
    hidden = hidden[:, :width]
    plain.model.fuse()
    expected = codes.clone()
    for codebook in range(1, CODEBOOKS):
        embedded = [hidden, first[expected[:, 0]]]
        embedded += [plain.model.codec_embedding[c - 1](expected[:, c]) for c in range(1, codebook)]
        for job in range(JOBS):
            x = plain.project(torch.stack([e[job] for e in embedded]))
            state = plain.model(x, plain.model.rotary(torch.arange(len(x))), attend_to_all_before)[-1]
            expected[job, codebook] = plain.lm_head[codebook - 1](state).argmax()

    state = MTPState(new_predictor(width).fuse(), first, JOBS)
    for slot in range(JOBS):
        state.bind(slot, GREEDY)
    assert torch.equal(drawn(state, hidden, codes, drawing([0, 1, 2, 3], [1, 2, 3, 4], [0] * 4)), expected)


def attend_to_all_before(layer, queries, keys, values):
    groups = CONFIG.num_attention_heads // CONFIG.num_key_value_heads
    keys, values = (x.repeat_interleave(groups, dim=1).transpose(0, 1) for x in (keys, values))
    scores = queries.transpose(0, 1) @ keys.transpose(1, 2) / CONFIG.head_dim**0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ values).transpose(0, 1).flatten(1)


def test_no_drawing_slot_returns_at_once(mtp):
    _, codes = step()
    before = codes.clone()
    mtp.post_sample(None, codes, drawing([], [], []))
    assert torch.equal(codes, before)


def test_rows_that_do_not_draw_are_untouched(mtp):
    hidden, codes = step()
    codes[:, 1:] = 7
    after = drawn(mtp, hidden, codes, drawing([2, 0], [5, 6], [1, 9]))
    assert torch.equal(after[[1, 3]], codes[[1, 3]])
    assert (after[[0, 2], 1:] != 7).any(dim=1).all()


def test_repeated_codes_are_taken_not_drawn(mtp):
    hidden, codes = step()
    codes[1, 1:] = torch.arange(1, CODEBOOKS)
    after = drawn(mtp, hidden, codes, drawing([0, 1], [5, 6], [1, 9], repeats=[False, True]))
    assert torch.equal(after[1], codes[1])
    assert torch.equal(after[0], drawn(mtp, hidden, codes, drawing([0], [5], [1]))[0])


@pytest.mark.parametrize("others", [[], [0], [0, 1, 3]])
def test_codes_do_not_depend_on_who_else_draws(mtp, others):
    hidden, codes = step(4)
    alone = drawn(mtp, hidden, codes, drawing([2], [77], [12]))[2]
    crowd, crowd_codes = step(5)
    crowd[2], crowd_codes[2] = hidden[2], codes[2]
    slots = [*others, 2]
    together = drawn(
        mtp, crowd, crowd_codes, drawing(slots, [100 + s for s in others] + [77], [3] * len(others) + [12])
    )
    assert torch.equal(together[2], alone)


def test_codes_do_not_depend_on_the_slot(mtp):
    hidden, codes = step(6)
    hidden[:], codes[:] = hidden[0].clone(), codes[0].clone()
    seen = [drawn(mtp, hidden, codes, drawing([slot], [77], [12]))[slot] for slot in range(JOBS)]
    assert all(torch.equal(seen[0], other) for other in seen[1:])


def test_a_draw_is_of_its_seed_and_its_frame(mtp):
    hidden, codes = step(7)
    hidden[:], codes[:] = hidden[0].clone(), codes[0].clone()
    after = drawn(mtp, hidden, codes, drawing([0, 1, 2, 3], [8, 8, 9, 8], [0, 1, 0, 0]))
    assert torch.equal(after[0], after[3])
    assert not torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])


def test_parameters_are_the_slots_own(mtp, first_codes):
    """Slot 1 is greedy, slot 2 hot: each draws what it draws among its equals."""
    hidden, codes = step(8)
    who = drawing([0, 1, 2, 3], [1, 2, 3, 4], [5] * 4)
    hot = PARAMS | {"subtalker_temperature": 50.0, "subtalker_top_k": 0}
    alike = {}
    for name, params in (("plain", PARAMS), ("greedy", GREEDY), ("hot", hot)):
        state = MTPState(new_predictor().fuse(), first_codes, JOBS)
        for slot in range(JOBS):
            state.bind(slot, params)
        alike[name] = drawn(state, hidden, codes, who)
    mtp.bind(1, GREEDY)
    mtp.bind(2, hot)
    mixed = drawn(mtp, hidden, codes, who)
    expected = ["plain", "greedy", "hot", "plain"]
    assert all(torch.equal(mixed[slot], alike[name][slot]) for slot, name in enumerate(expected))
    assert not torch.equal(alike["greedy"][1], alike["plain"][1])
    assert not torch.equal(alike["hot"][2], alike["plain"][2])


def test_a_slot_that_is_bound_again_keeps_nothing(mtp, first_codes):
    hidden, codes = step(9)
    who = drawing([1], [4], [3])
    mtp.bind(1, PARAMS | {"subtalker_temperature": 30.0, "subtalker_top_k": 0, "subtalker_top_p": 0.99})
    drawn(mtp, hidden * 5, codes, drawing([0, 1], [9, 9], [0, 0]))
    mtp.bind(1, PARAMS)
    fresh = MTPState(new_predictor().fuse(), first_codes, JOBS)
    fresh.bind(1, PARAMS)
    assert torch.equal(drawn(mtp, hidden, codes, who)[1], drawn(fresh, hidden, codes, who)[1])


@pytest.mark.parametrize("rows", [JOBS - 1, 7])
def test_another_steps_hidden_states_are_refused(mtp, rows):
    _, codes = step()
    with pytest.raises(ValueError, match=f"one of each for {JOBS}"):
        mtp.post_sample(torch.zeros(rows, WIDTH), codes, drawing([0], [1], [0]))
    with pytest.raises(ValueError, match=f"one of each for {JOBS}"):
        mtp.post_sample(None, codes, drawing([0], [1], [0]))


@pytest.mark.parametrize(
    "params",
    [{"subtalker_temperature": 0.0}, {"subtalker_top_k": -1}, {"subtalker_top_p": 0.0}, {"subtalker_top_p": 1.5}],
)
def test_parameters_out_of_range(mtp, params):
    with pytest.raises(ValueError, match=next(iter(params)).removeprefix("subtalker_")):
        mtp.bind(0, PARAMS | params)


@pytest.mark.parametrize(
    "settings",
    [{"sampled_tokens": 2}, {"pipeline_parallel_size": 2}, {"speculative_config": {"num_speculative_tokens": 1}}],
)
def test_engines_that_do_not_make_one_whole_frame_a_step_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        refuse_settings(settings)
    refuse_settings({"sampled_tokens": 1, "pipeline_parallel_size": 1, "speculative_config": None})


@pytest.mark.parametrize("positions", [1, 2])
def test_attention_in_sums_is_attention(positions):
    random = torch.Generator().manual_seed(positions)
    queries = torch.randn(3, 2, 2 * positions, 8, generator=random)
    keys, values = torch.randn(2, 3, 2, 16, 8, generator=random)
    seen = torch.ones(16, 16, dtype=torch.bool).tril()[3 : 3 + positions].repeat(2, 1)
    ours = attended_in_sums(queries, keys, values, seen)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(queries, keys, values, seen), rtol=0, atol=1e-6)
    values[:, :, 3 + positions :] = 1e9  # of positions to come
    assert torch.equal(attended_in_sums(queries, keys, values, seen), ours)
