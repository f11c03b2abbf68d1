"""The speech talker: sampling as published, and requests that share a batch and hear nothing of each other."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from broker_schemas.events import JobRequested
from tests.tiny_checkpoint import tiny_checkpoint
from workers.checkpoints import CheckpointError
from workers.models.family import Drawing, Reference
from workers.models.qwen3_tts import config
from workers.models.qwen3_tts.checkpoint import make_checkpoint
from workers.models.qwen3_tts.sampling import Sampling, penalise, seen_codes
from workers.models.qwen3_tts.talker import SpeechTalker, load_talker
from workers.runners.torch_runner import TorchRunner
from workers.talker.frames import FrameHistory
from workers.talker.sampling import draw_keys, gumbel

JOBS = 3
END, CODEBOOKS = 2150, 16
PARAMS = {
    "task_type": "custom_voice",
    "voice": "ryan",
    "language": "English",
    "instructions": "",
    "non_streaming_mode": True,
    "max_new_tokens": 12,
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
def folder():
    torch.set_num_threads(1)
    return tiny_checkpoint("qwen3_tts")


@pytest.fixture(scope="module")
def talker(folder) -> SpeechTalker:
    return load_talker(folder, {"max_jobs": JOBS})


def utterance(job: str, text: str = "One two three.", seed: int = 1, **params) -> FrameHistory:
    request = JobRequested(
        model="qwen3_tts", input=text, params=PARAMS | params, seed=seed, owner="o", deadline=0, ttl_ms=1
    )
    frames = request.params["max_new_tokens"]
    return FrameHistory(job, request, frames, config.LEAD, np.empty((0, CODEBOOKS), np.int16))


def new_runner(talker: SpeechTalker, **kwargs) -> TorchRunner:
    return TorchRunner(talker, max_jobs=JOBS, max_model_len=256, **kwargs)


def admit(runner: TorchRunner, talker: SpeechTalker, history: FrameHistory) -> FrameHistory:
    runner.admit(history, talker.prompts(history.request))
    return history


def finish(runner: TorchRunner, *histories: FrameHistory) -> None:
    while any(history.reason is None for history in histories):
        runner.step()


def speak(talker: SpeechTalker, history: FrameHistory) -> list[list[int]]:
    """Alone, from beginning to end."""
    runner = new_runner(talker)
    admit(runner, talker, history)
    finish(runner, history)
    return codes(history)


def codes(history: FrameHistory) -> list[list[int]]:
    return np.stack(history.codes).tolist()


# --- sampling ---------------------------------------------------------------------------------------------------------

VOCABULARY = 3072
WAYS = [
    {"temperature": 0.9, "top_k": 50, "top_p": 1.0},
    {"temperature": 0.9, "top_k": 0, "top_p": 0.8},
    {"temperature": 0.3, "top_k": 7, "top_p": 0.5},
    {"temperature": 2.5, "top_k": 400, "top_p": 0.99},
    {"temperature": 1.0, "top_k": 5000, "top_p": 0.01},
]


def random_logits(rows: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def sampling() -> Sampling:
    """A slot for each of WAYS."""
    of_slots = Sampling(len(WAYS), torch.device("cpu"))
    for slot, way in enumerate(WAYS):
        of_slots.bind(slot, do_sample=True, **way)
    return of_slots


def kept_by_transformers(logits: torch.Tensor, way: dict) -> torch.Tensor:
    warpers = [TemperatureLogitsWarper(way["temperature"])]
    warpers += [TopKLogitsWarper(way["top_k"])] if way["top_k"] else []
    warpers += [TopPLogitsWarper(way["top_p"])] if way["top_p"] < 1 else []
    return LogitsProcessorList(warpers)(torch.zeros(len(logits), 0, dtype=torch.int64), logits)


@pytest.mark.parametrize("seed", range(5))
def test_what_may_be_drawn_is_what_transformers_keeps(sampling, seed):
    """All requests in one batch, each with its own way; the slots in any order."""
    slots = torch.randperm(len(WAYS), generator=torch.Generator().manual_seed(seed))
    logits = random_logits(len(WAYS), seed)
    values, candidates = sampling.kept(logits, slots)
    ours = torch.full_like(logits, -torch.inf).scatter(1, candidates, values)
    for row, slot in enumerate(slots.tolist()):
        assert torch.equal(ours[row], kept_by_transformers(logits[row : row + 1], WAYS[slot])[0])


def test_ties_with_the_last_of_top_k_stay_in():
    of_slot = Sampling(1, torch.device("cpu"))
    of_slot.bind(0, do_sample=True, temperature=1.0, top_k=2, top_p=1.0)
    _, kept = of_slot.kept(torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]]), torch.tensor([0]))
    assert kept[0].tolist() == [1, 2, 3]


def test_the_draw_is_the_largest_of_logits_and_noise(sampling):
    slots = torch.arange(len(WAYS))
    logits = random_logits(len(WAYS), 9)
    keys = draw_keys(torch.full_like(slots, 11), slots)
    scores = gumbel(keys[:, None], torch.arange(VOCABULARY))
    scores += torch.cat([kept_by_transformers(logits[row : row + 1], way) for row, way in enumerate(WAYS)])
    assert torch.equal(sampling.draw(logits, slots, keys), scores.argmax(dim=-1))
    noise = gumbel(keys[:, None], torch.arange(VOCABULARY))
    assert torch.equal(sampling.draw(logits, slots, keys, noise), scores.argmax(dim=-1))


def test_greedy_draws_the_likeliest():
    of_slots = Sampling(2, torch.device("cpu"))
    for slot in range(2):
        of_slots.bind(slot, do_sample=False, temperature=0.0, top_k=-3, top_p=0.0)
    logits = random_logits(2, 1)
    keys = draw_keys(torch.tensor([1, 2]), torch.tensor([0, 0]))
    assert torch.equal(of_slots.draw(logits, torch.tensor([1, 0]), keys), logits.argmax(dim=-1))


def test_how_often_each_code_is_drawn():
    of_slot = Sampling(1, torch.device("cpu"))
    of_slot.bind(0, do_sample=True, temperature=2.0, top_k=0, top_p=1.0)
    n, logits = 4000, torch.tensor([2.0, 0.0, -2.0, 4.0])
    keys = draw_keys(torch.tensor(5), torch.arange(n))
    drawn = of_slot.draw(logits.expand(n, -1), torch.zeros(n, dtype=torch.int64), keys)
    shares = torch.bincount(drawn, minlength=4) / n
    assert torch.allclose(shares, (logits / 2).softmax(-1), atol=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_repetition_penalty_is_transformers(seed):
    """Of the first codebook's codes so far; what lies at the draw index and after is not looked at."""
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(0, 2048, (4, 30), generator=generator)
    draws, penalty = torch.tensor([0, 1, 17, 30]), torch.tensor([1.05, 1.5, 0.8, 1.05])
    logits = random_logits(4, seed)
    ours = penalise(logits, seen_codes(history, draws, VOCABULARY), penalty)
    history[0, 0] = 10**12  # never read
    for row in range(4):
        theirs = RepetitionPenaltyLogitsProcessor(round(penalty[row].item(), 4))
        so_far = history[row : row + 1, : draws[row]]
        expected = theirs(so_far, logits[row : row + 1].clone()) if draws[row] else logits[row : row + 1]
        assert torch.equal(ours[row], expected[0])
    assert torch.equal(ours[0], penalise(logits, seen_codes(history, draws, VOCABULARY), penalty)[0])


@pytest.mark.parametrize(("draw", "to_end"), [(0, True), (1, True), (2, True), (2, False), (9, False)])
def test_the_first_code_goes_through_all_processors_in_order(monkeypatch, talker, draw, to_end):
    """The talker's own draw against transformers' list of processors, on logits where each of them matters."""
    way = {"temperature": 1.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 3.0}
    slot_params = (way | {"repetition_penalty": 1.0}, PARAMS, way)
    for slot, params in enumerate(slot_params):
        history = utterance("a", **params)
        talker.bind(slot, history.request, talker.prompts(history.request))
    hidden = torch.zeros(1, JOBS, talker.backbone.config.hidden_size)
    hidden[0, 2] = torch.randn(hidden.shape[-1], generator=torch.Generator().manual_seed(draw))
    head = talker._head.clone()
    for id_, logit in {END: 40.0 if to_end else -9.0, 2200: 40.0}.items():  # an id that is never drawn would win
        head[id_] = hidden[0, 2] * logit / hidden[0, 2].square().sum()
    monkeypatch.setattr(talker, "_head", head)
    logits = hidden[0, 2:] @ head.T
    likely = logits[:, :2048].topk(16).indices
    so_far = torch.zeros(JOBS, 16, CODEBOOKS, dtype=torch.int64)
    so_far[2, :, 0] = likely  # beyond the draw it is rubbish, and none of it may be penalised
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(3.0),
            MinNewTokensLengthLogitsProcessor(0, 2, [END], device="cpu"),
            SuppressTokensLogitsProcessor([i for i in range(2048, VOCABULARY) if i != END], device="cpu"),
            TemperatureLogitsWarper(1.7),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
        ]
    )
    kept = theirs(likely[:, :draw], logits)[0]
    for seed in range(12):
        expected = (
            kept + gumbel(draw_keys(torch.tensor(seed), torch.tensor(16 * draw)), torch.arange(VOCABULARY))
        ).argmax()
        who = Drawing(torch.tensor([2]), torch.tensor([seed]), torch.tensor([draw]), so_far)
        drawn = talker.draw(hidden, torch.zeros(JOBS, CODEBOOKS, dtype=torch.int64), who)
        assert drawn.ended.tolist() == [False, False, to_end and draw >= 2] == [False, False, expected.item() == END]
        assert drawn.ended[2] or drawn.codes[2, 0] == expected


# --- isolation --------------------------------------------------------------------------------------------------------

MANY = [
    {"text": "One two three.", "seed": 1, "non_streaming_mode": False},
    {"text": "Quite another text, which is longer.", "seed": 2, "voice": "vivian", "temperature": 1.4, "top_k": 0},
    {"text": "And again.", "seed": 3, "do_sample": False, "repetition_penalty": 1.5, "subtalker_top_p": 0.5},
]


def test_utterances_together_and_alone(talker):
    """Each with its text, voice, way of drawing; admitted at different times, so that prefill and decode mix."""
    alone = [speak(talker, utterance(f"alone {i}", **asked)) for i, asked in enumerate(MANY)]
    assert all(alone[i] != alone[j] for i in range(3) for j in range(i))
    runner = new_runner(talker, prefill_chunk=4, chunks_a_step=1)
    together = [utterance(f"together {i}", **asked) for i, asked in enumerate(MANY)]
    for history in together:
        admit(runner, talker, history)
        for _ in range(4):
            runner.step()
    finish(runner, *together)
    chunked = [speak_in_chunks(talker, utterance(f"chunked {i}", **asked)) for i, asked in enumerate(MANY)]
    assert [codes(history) for history in together] == chunked


def speak_in_chunks(talker: SpeechTalker, history: FrameHistory) -> list[list[int]]:
    runner = new_runner(talker, prefill_chunk=4, chunks_a_step=1)
    admit(runner, talker, history)
    finish(runner, history)
    return codes(history)


def test_the_slot_changes_nothing(talker):
    asked = MANY[0]
    alone = speak(talker, utterance("alone", **asked))
    runner = new_runner(talker)
    others = [admit(runner, talker, utterance(f"other {i}", **MANY[1])) for i in range(2)]
    history = admit(runner, talker, utterance("last", **asked))
    finish(runner, history, *others)
    assert codes(history) == alone
    assert codes(others[0]) == codes(others[1])


def test_a_slot_is_reused_after_a_cancel(talker):
    """The cancelled one had a longer text, spread over the frames, and another way of drawing."""
    asked = {"text": "Short.", "seed": 4, "non_streaming_mode": False}
    alone = speak(talker, utterance("alone", **asked))
    runner = new_runner(talker)
    cancelled = utterance(
        "cancelled", "A long text that goes on and on, much longer than the other.", seed=9, non_streaming_mode=False,
        temperature=3.0, top_k=0, repetition_penalty=2.0, subtalker_temperature=3.0, subtalker_top_k=0,
    )  # fmt: skip
    admit(runner, talker, cancelled)
    for _ in range(5):
        runner.step()
    runner.free("cancelled")
    after = admit(runner, talker, utterance("after", **asked))
    finish(runner, after)
    assert codes(after) == alone


def test_codes_from_the_log_are_repeated_and_gone_on_from(talker):
    """The repetition penalty and the spread text see the repeated frames too."""
    asked = MANY[0] | {"repetition_penalty": 2.5}
    whole = speak(talker, utterance("whole", **asked))
    resumed = utterance("resumed", **asked)
    resumed.forced = np.array(whole[:7], dtype=np.int16)
    assert speak(talker, resumed) == whole


# --- clones -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cloning_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint(folder, "tiny-base", 1)
    return folder


@pytest.fixture(scope="module")
def cloner(cloning_folder) -> SpeechTalker:
    return load_talker(cloning_folder, {"max_jobs": JOBS})


def voice(seed: int, frames: int) -> Reference:
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 2048, (frames, CODEBOOKS), dtype=np.int16)
    return Reference(generator.normal(0, 0.5, 64).astype(np.float32), codes)


def clone(job: str, reference: Reference, **params) -> FrameHistory:
    asked = {"task_type": "base", "ref_text": "This is me.", "x_vector_only_mode": False, "non_streaming_mode": False}
    history = utterance(job, "What I say now.", **asked | params)
    history.reference = reference
    return history


def clone_together(cloner: SpeechTalker, *clones: FrameHistory) -> list[list[list[int]]]:
    runner = new_runner(cloner, prefill_chunk=8, chunks_a_step=2)
    for history in clones:
        runner.admit(history, cloner.prompts(history.request, history.reference))
        runner.step()
    finish(runner, *clones)
    return [codes(history) for history in clones]


def test_clones_of_different_voices_at_once(cloner):
    """One of them has as many reference frames as its text has tokens, one its voice's colour only."""
    tokens = len(cloner._tokenizer.encode("This is me.What I say now.").ids)
    asked = [
        (voice(1, tokens), {"seed": 1}),
        (voice(2, 5), {"seed": 2, "x_vector_only_mode": True}),
        (voice(3, 31), {"seed": 3}),
    ]
    alone = [
        clone_together(cloner, clone(f"alone {i}", reference, **params))[0]
        for i, (reference, params) in enumerate(asked)
    ]
    clones = [clone(f"together {i}", reference, **params) for i, (reference, params) in enumerate(asked)]
    assert clone_together(cloner, *clones) == alone
    [other_voice] = clone_together(cloner, clone("other voice", voice(4, tokens), seed=1))
    assert other_voice != alone[0]


def test_a_clones_prompt_has_its_speaker_and_its_frames(cloning_folder, cloner):
    weights = load_file(cloning_folder / "model.safetensors")
    reference = voice(5, 40)
    history = clone("a", reference)
    cloner.bind(1, history.request, cloner.prompts(history.request, reference), reference)
    length = len(cloner.prompts(history.request, reference)[0])
    embeds = cloner.embed_prompt(1, 0, 0, length)
    padding = cloner._text[151_671]
    speaker = length - 41 - 1 - 1  # the frames and their beginning, and the text's beginning, come after it
    assert torch.allclose(embeds[speaker], padding + torch.from_numpy(reference.speaker), atol=1e-6)
    frame = weights["talker.model.codec_embedding.weight"][int(reference.codes[-1, 0])].clone()
    for book in range(15):
        table = weights[f"talker.code_predictor.model.codec_embedding.{book}.weight"]
        frame += table[int(reference.codes[-1, book + 1])]
    assert torch.allclose(embeds[-1], padding + frame, atol=1e-5)


def test_a_clone_without_what_it_needs_is_refused(cloner):
    reference = voice(6, 4)
    history = clone("a", reference)
    with pytest.raises(ValueError, match="needs its reference"):
        cloner.prompts(history.request)
    with pytest.raises(ValueError, match="codes"):
        cloner.prompts(history.request, Reference(reference.speaker, None))


# --- passages ---------------------------------------------------------------------------------------------------------

GREEDY = {"do_sample": False, "repetition_penalty": 1.0, "max_new_tokens": 12}


def said(frames: int) -> np.ndarray:
    return np.random.default_rng(frames).integers(0, 2048, (frames, CODEBOOKS), dtype=np.int16)


@pytest.mark.parametrize("frames", [1, 4, 30])
@pytest.mark.parametrize("whole_text", [True, False])
def test_a_passage_goes_on_as_the_utterance_that_has_said_the_one_before(talker, frames, whole_text):
    """Frames in the prompt are heard as frames that were drawn, beside the text that goes with each."""
    text, way = "One two three. Four five six seven.", GREEDY | {"non_streaming_mode": whole_text}
    drawn = utterance("drawn", text, **way | {"max_new_tokens": frames + 12})
    drawn.forced = said(frames)
    passage = utterance("passage", text, **way)
    passage.context = said(frames)
    runner = new_runner(talker, prefill_chunk=8)
    for history in (drawn, passage):
        runner.admit(history, talker.prompts(history.request, None, history.context))
    finish(runner, drawn, passage)
    assert codes(passage) == codes(drawn)[frames:]
    assert codes(passage) != speak(talker, utterance("anew", text, **way))[0]


@pytest.mark.parametrize("vector_only", [True, False])
def test_a_clones_passage_goes_on_from_its_reference_too(cloner, vector_only):
    way = GREEDY | {"x_vector_only_mode": vector_only}
    drawn = clone("drawn", voice(3, 9), **way | {"max_new_tokens": 17 + 12})
    drawn.forced = said(17)
    passage = clone("passage", voice(3, 9), **way)
    passage.context = said(17)
    runner = new_runner(cloner, prefill_chunk=8)
    for history in (drawn, passage):
        runner.admit(history, cloner.prompts(history.request, history.reference, history.context))
    finish(runner, drawn, passage)
    assert codes(passage) == codes(drawn)[17:]


# --- feedback ---------------------------------------------------------------------------------------------------------


def test_feedback_is_the_sum_of_codes_and_text(folder, talker):
    weights = load_file(folder / "model.safetensors")
    history = utterance("a", "One two three.", non_streaming_mode=False)
    admit(new_runner(talker), talker, history)
    frame = torch.randint(0, 2048, (1, CODEBOOKS), generator=torch.Generator().manual_seed(1))
    expected = weights["talker.model.codec_embedding.weight"][frame[0, 0]].clone()
    for book in range(15):
        expected += weights[f"talker.code_predictor.model.codec_embedding.{book}.weight"][frame[0, book + 1]]
    ids = talker._tokenizer.encode("One two three.").ids[1:] + [151_673] + [151_671] * 3
    for draw, id_ in enumerate(ids):
        text = weights["talker.model.text_embedding.weight"][id_]
        for layer, function in ((1, torch.nn.functional.silu), (2, torch.nn.Identity())):
            name = f"talker.text_projection.linear_fc{layer}"
            text = function(weights[f"{name}.weight"] @ text + weights[f"{name}.bias"])
        ours = talker.feedback(frame, torch.tensor([0]), torch.tensor([draw]))
        assert torch.allclose(ours[0], expected + text, atol=1e-5)


def test_feedback_does_not_depend_on_how_many(talker):
    for text in ("a text", "b, another text"):
        admit(new_runner(talker), talker, utterance(text, text))
    frames = torch.randint(0, 2048, (7, CODEBOOKS), generator=torch.Generator().manual_seed(2))
    slots, draws = torch.tensor([0, 1, 0, 2, 1, 1, 0]), torch.arange(7)
    together = talker.feedback(frames, slots, draws)
    alone = [talker.feedback(frames[i : i + 1], slots[i : i + 1], draws[i : i + 1])[0] for i in range(7)]
    assert torch.equal(together, torch.stack(alone))


# --- loading ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(folder, tmp_path):
    """A checkpoint whose files may be changed."""
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path / file.name)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("talker.codec_head.weight"), "missing: codec_head.weight"),
        (lambda w: w.pop("talker.model.norm.weight"), "missing: norm.weight"),
        (lambda w: w.pop("talker.code_predictor.lm_head.14.weight"), "missing: code_predictor.lm_head.14.weight"),
        (lambda w: w.update({"talker.model.extra": torch.zeros(1)}), "unexpected: extra"),
        (lambda w: w.update({"extra": torch.zeros(1)}), "unexpected: extra"),
        (lambda w: w.update({"talker.text_projection.linear_fc2.bias": torch.zeros(3)}), r"linear_fc2.bias is \(3,\)"),
    ],
)
def test_weights_that_do_not_fit(copy, change, named):
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=named):
        load_talker(copy, {"max_jobs": 1})


def test_a_decoder_that_is_not_built_here(copy):
    stated = json.loads((copy / "config.json").read_text())
    stated["talker_config"]["use_sliding_window"] = True
    (copy / "config.json").write_text(json.dumps(stated))
    with pytest.raises(CheckpointError, match="use_sliding_window"):
        load_talker(copy, {"max_jobs": 1})


@pytest.mark.parametrize("settings", [{"dtype": "float16"}, {"surprise": 1}, {"pipeline_parallel_size": 2}])
def test_settings_that_do_not_fit(folder, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        load_talker(folder, {"max_jobs": 1} | settings)


def test_an_engine_has_the_backbone(folder, talker):
    beside = load_talker(folder, {"max_jobs": JOBS}, embed_tokens=torch.nn.Embedding(1, 1))
    with pytest.raises(LookupError):
        _ = beside.backbone
    history = utterance("a")
    for one in (talker, beside):
        one.bind(0, history.request, talker.prompts(history.request))
    length = len(talker.prompts(history.request)[0])
    assert torch.equal(talker.embed_prompt(0, 0, 0, length), beside.embed_prompt(0, 0, 0, length))


def test_bfloat16(folder):
    talker = load_talker(folder, {"max_jobs": JOBS, "dtype": "bfloat16"})
    assert talker.backbone.norm.weight.dtype == torch.bfloat16
    assert len(speak(talker, utterance("a", max_new_tokens=3))) == 3
