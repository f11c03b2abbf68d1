"""What is trained is what is served: the exported voice draws what the trained one finds likeliest."""

import numpy as np
import pytest
import torch

from broker_schemas.events import JobRequested
from workers.models.family import load_family
from workers.models.qwen3_tts.talker import load_talker
from workers.runners.torch_runner import TorchRunner
from workers.talker.frames import FrameHistory
from workers.training import voice
from workers.training.codec import Codec
from workers.training.corpus import Utterance
from workers.training.packing import pack
from workers.training.prompts import Prompter
from workers.training.sizes import CODEBOOKS, decoder_sizes
from workers.training.talker import END, NONE, Rows

TEXT = "The river wrote a letter."
FRAMES = 12


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    talker = voice.new_talker().eval()
    for name, parameter in talker.named_parameters():  # as spread as trained ones, and none of them zero
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.0 if name.endswith("bias") else 1.0, 0.1)
        elif "embedding" not in name:
            parameter.data *= 3
    for parameter in talker.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()  # as it is exported
    return talker


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("voice")
    voice.export(path, Codec(decoder_sizes()), trained)
    return path


def drawn(folder):
    """What the served voice draws where it takes the likeliest codes: (frames, codebooks)."""
    contract = load_family("qwen3_tts").contract(folder, 512)
    order = contract.accept({"input": TEXT, "do_sample": False, "language": "English", "max_new_tokens": FRAMES})
    request = JobRequested(
        model="qwen3_tts", input=order.input, params=order.params, seed=1, owner="o", deadline=0, ttl_ms=1
    )
    with torch.inference_mode():
        talker = load_talker(folder, {"max_jobs": 1})
        runner = TorchRunner(talker, max_jobs=1, max_model_len=512)
        history = FrameHistory("job", request, FRAMES, lead=0, forced=np.empty((0, CODEBOOKS), np.int16))
        runner.admit(history, talker.prompts(request))
        while len(history.codes) < FRAMES:
            runner.step()
    return torch.from_numpy(np.stack(history.codes)).long()


def packed(frames, phonemes):
    utterance = Utterance("line-1", phonemes, 0, frames, np.linspace(1, frames, len(phonemes), dtype=np.float32))
    prompter = Prompter()  # whose second prompt would be in another language
    fields = pack([utterance], prompter.make, prompter.pad, 128, np.random.default_rng(0))
    return Rows(**{name: torch.from_numpy(field).long() for name, field in fields.items()})


def test_the_exported_voice_draws_what_the_trained_one_finds_likeliest(trained, folder):
    from workers.models.qwen3_tts import phonemes

    codes = drawn(folder)
    rows = packed(FRAMES, phonemes.reading(TEXT))
    at = (rows.next >= 0).nonzero()
    with torch.no_grad():
        hidden = trained.hidden(rows, codes)[at[:, 0], at[:, 1]]
        first = trained.beside.codec_head(hidden)[:, : trained.beside.code_predictor.codes]
        residual = trained.residual_logits(hidden, codes)
    assert torch.equal(first.argmax(dim=1), codes[:, 0])
    for codebook, logits in enumerate(residual, start=1):
        assert torch.equal(logits.argmax(dim=1), codes[:, codebook])
    assert len(codes[:, 0].unique()) > 3


def test_a_row_says_what_follows_each_position():
    rows = packed(4, "hAlO.")
    begin = int((rows.next[0] >= 0).nonzero()[0])
    assert rows.next[0, begin : begin + 5].tolist() == [0, 1, 2, 3, END]
    assert rows.frame[0, begin : begin + 6].tolist() == [NONE, 0, 1, 2, 3, NONE]
    assert (rows.next[0, begin + 5 :] == NONE).all()
    assert rows.position[0, : begin + 5].tolist() == list(range(begin + 5))


def test_a_frame_is_aligned_with_the_phoneme_in_its_middle():
    """Wherever in a row the utterance stands."""
    prompter = Prompter()
    prompt, first = prompter.make("abc")
    ids = prompt.text[first : first + 3]
    utterance = Utterance("line-1", "abc", 0, 4, np.array([1.4, 1.6, 3.2], np.float32))
    fields = pack([utterance] * 3, Prompter().make, prompter.pad, 128, np.random.default_rng(1))
    text, spoken = fields["text"][0], fields["spoken"][0]
    assert fields["utterance"].max() >= 1
    assert text[spoken[spoken != NONE]].tolist() == [ids[0], ids[1], ids[2], ids[2]] * 3
    there = spoken != NONE
    assert (fields["utterance"][0][spoken[there]] == fields["utterance"][0][there]).all()


def test_the_head_that_is_shown_the_place_learns_it():
    torch.manual_seed(0)
    talker = voice.new_talker().train()
    rows, codes = packed(FRAMES, "hAlO."), torch.randint(0, 512, (FRAMES, CODEBOOKS))
    optimiser = torch.optim.AdamW(talker.model.layers[:3].parameters(), 1e-3)
    places = []
    for _ in range(12):
        losses = talker(rows, codes, 4)
        places.append(losses.place.item())
        optimiser.zero_grad()
        losses.place.backward()
        optimiser.step()
    assert places[-1] < 0.8 * places[0]


def test_utterances_of_a_row_do_not_hear_each_other(trained):
    lines = [Utterance(f"line-{n}", "hAlO.", 5 * n, 5, np.arange(6, dtype=np.float32)) for n in range(4)]
    prompter = Prompter()
    fields = pack(lines, prompter.make, prompter.pad, 256, np.random.default_rng(3))
    rows = Rows(**{name: torch.from_numpy(field).long() for name, field in fields.items()})
    codes = torch.randint(0, 512, (20, CODEBOOKS))
    others = rows._replace(frame=torch.where((rows.utterance == 0) & (rows.frame >= 0), 0, rows.frame))
    with torch.no_grad():
        before, after = trained.hidden(rows, codes), trained.hidden(others, codes)
    first = rows.utterance == 0
    assert not torch.equal(before[first], after[first])
    assert torch.equal(before[~first], after[~first])


def test_prompts_are_the_served_ones():
    prompter = Prompter()
    for language in ("English", "Auto"):
        prompt, first = prompter.make("hA rIvOr, rOt!")
        served = prompter.build("hA rIvOr, rOt!", language)
        assert (prompt.text, prompt.codec) == (served.text, served.codec)
        assert prompt.codec[first] == prompt.codec[first + 1]
