"""Code2Wav as a stream: cuts are not heard, state is the caller's, rows are alone, and loading is strict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.code2wav_checkpoint import TINY, write_speech_tokenizer
from workers.checkpoints import CheckpointError, PartialDownload
from workers.models.qwen3_tts.code2wav import Code2Wav, fold, load_code2wav
from workers.models.qwen3_tts.code2wav_layers import CausalConv
from workers.models.qwen3_tts.code2wav_sizes import Code2WavSizes

TOLERANCE = 1e-5  # of the RMS
WINDOW = 12  # of the attention, so that a short utterance has several
FRAMES = 60


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_speech_tokenizer(tmp_path_factory.mktemp("checkpoint"), TINY | {"sliding_window": WINDOW})


@pytest.fixture(scope="module")
def decoder(checkpoint, device) -> Code2Wav:
    return load_code2wav(checkpoint, device)


def utterances(decoder: Code2Wav, *seeds: int, frames: int = FRAMES) -> Tensor:
    """(len(seeds), frames, 16)."""
    rows = [torch.randint(64, (frames, 16), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows).to(decoder.device)


def play(decoder: Code2Wav, codes: Tensor, cuts: list[int], state: dict | None = None) -> tuple[Tensor, dict]:
    """Sound and state after calls of these lengths."""
    state, sounds = decoder.init_state(len(codes)) if state is None else state, []
    for call in codes.split(cuts, dim=1):
        sound, state = decoder.decode(call, state)
        sounds.append(sound)
    return torch.cat(sounds, dim=1), state


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())


def random_cuts(draws: torch.Generator) -> list[int]:
    """Lengths of calls that make FRAMES: as many short ones as long ones."""
    cuts = []
    while (rest := FRAMES - sum(cuts)) > 0:
        longest = int(torch.tensor([1, 3, 10, 40])[torch.randint(4, (), generator=draws)])
        cuts.append(min(rest, int(torch.randint(1, longest + 1, (), generator=draws))))
    return cuts


def test_cuts_are_not_heard(decoder) -> None:
    codes = utterances(decoder, 0)
    whole, _ = play(decoder, codes, [FRAMES])
    assert 0.05 < whole.std() < 0.5 and whole.abs().max() < 1.0
    draws = torch.Generator().manual_seed(1)
    for cuts in [[1] * FRAMES, *(random_cuts(draws) for _ in range(100))]:
        sound, _ = play(decoder, codes, cuts)
        assert relative(sound, whole) < TOLERANCE, cuts


def test_the_same_cuts_give_the_same_bytes_after_a_takeover(checkpoint, decoder, device) -> None:
    """A successor decodes what was played again, and goes on."""
    codes, cuts = utterances(decoder, 0), [1, 2, 4, 8, 16, 25, 4]
    sound, _ = play(decoder, codes, cuts)
    successor = load_code2wav(checkpoint, device)
    played = sum(cuts[:4])
    again, state = play(successor, codes[:, :played], cuts[:4])
    rest, _ = play(successor, codes[:, played:], cuts[4:], state)
    assert torch.equal(torch.cat((again, rest), dim=1), sound)


def test_a_call_leaves_the_state_it_was_given(decoder) -> None:
    codes = utterances(decoder, 0)
    _, state = play(decoder, codes[:, :30], [30])
    before = {name: entry.clone() for name, entry in state.items()}
    first, _ = decoder.decode(codes[:, 30:35], state)
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert torch.equal(decoder.decode(codes[:, 30:35], state)[0], first)


@pytest.mark.parametrize("frames", [1, 25, 60])
def test_state_has_one_shape_and_no_hidden_weight(decoder, frames: int) -> None:
    """What an entry keeps alive is what it holds, however long the call was."""
    fresh = decoder.init_state(2)
    _, state = decoder.decode(utterances(decoder, 0, 1, frames=frames), fresh)
    assert state.keys() == fresh.keys()
    for name, entry in state.items():
        assert (entry.shape, entry.dtype) == (fresh[name].shape, fresh[name].dtype)
        assert entry.untyped_storage().nbytes() == entry.nbytes, name
    assert state["position"].tolist() == [frames, frames]


def test_what_comes_later_changes_nothing_before(decoder) -> None:
    """So a padded call's wanted part has the bytes that it has in a full one."""
    codes, others = utterances(decoder, 0, frames=25), utterances(decoder, 1, frames=25)
    _, state = play(decoder, utterances(decoder, 2), [FRAMES])
    full, _ = decoder.decode(codes, state)
    for frames in (1, 7, 24):
        for padding in (others, torch.zeros_like(others)):
            padded = torch.cat((codes[:, :frames], padding[:, frames:]), dim=1)
            sound, _ = decoder.decode(padded, state)
            assert torch.equal(sound[:, : frames * 1920], full[:, : frames * 1920])
            assert not torch.equal(sound, full)


def test_nothing_is_seen_before_the_first_frame(decoder) -> None:
    codes, state = utterances(decoder, 0, frames=15), decoder.init_state(1)
    sound, _ = decoder.decode(codes, state)
    for name in [name for name in state if name.endswith((".keys", ".values"))]:
        state[name] = torch.ones_like(state[name])
    assert torch.equal(decoder.decode(codes, state)[0], sound)


def test_rows_do_not_hear_each_other(decoder) -> None:
    """At one shape a row's bytes are its own, wherever its neighbours stand in their utterances."""
    mine, theirs, others = (utterances(decoder, seed) for seed in (0, 1, 2))
    cuts = [1, 8, 25, 25]
    frames = sum(cuts)
    sound, _ = play(decoder, torch.cat((mine, theirs))[:, :frames], cuts)
    _, late = play(decoder, others, [FRAMES])
    fresh = decoder.init_state(1)
    state = {name: torch.cat((fresh[name], late[name])) for name in fresh}
    beside, _ = play(decoder, torch.cat((mine, others))[:, :frames], cuts, state)
    assert torch.equal(sound[0], beside[0])
    assert not torch.equal(sound[1], beside[1])
    alone, _ = play(decoder, mine[:, :frames], cuts)
    assert relative(sound[0], alone[0]) < TOLERANCE


@pytest.mark.parametrize("dilation", [1, 3, 9])
def test_a_convolution_is_the_same_as_a_product(dilation: int) -> None:
    random = torch.Generator().manual_seed(dilation)
    x, kept = (torch.randn(2, frames, 5, generator=random) for frames in (20, 6 * dilation))
    outcomes = []
    for as_product in (True, False):
        torch.manual_seed(0)
        layer, state = CausalConv(5, 3, 7, dilation=dilation), {"": kept}
        published = layer.conv
        layer.fold(as_product=as_product)
        with torch.no_grad():
            outcomes.append((layer(x, state), state[""]))
            whole = published(torch.cat((kept, x), dim=1).transpose(1, 2)).transpose(1, 2)
        torch.testing.assert_close(outcomes[-1][0], whole)
    assert torch.equal(outcomes[0][1], outcomes[1][1])


def test_decoding_reads_nothing_back_from_the_device() -> None:
    """On "meta" there is nothing to read, so any value that decides something would fail."""
    with torch.device("meta"):
        decoder = Code2Wav(Code2WavSizes.from_config(TINY))
        sound, state = fold(decoder).decode(torch.zeros(3, 4, 16, dtype=torch.int64), decoder.init_state(3))
    assert sound.shape == (3, 4 * 1920) and state["position"].shape == (3,)


def test_bfloat16_is_near_and_keeps_its_state_narrow(checkpoint, decoder, device) -> None:
    codes = utterances(decoder, 0)
    narrow = load_code2wav(checkpoint, device, torch.bfloat16)
    sound, state = play(narrow, codes, [25, 25, 10])
    assert sound.dtype == torch.float32
    assert relative(sound, play(decoder, codes, [FRAMES])[0]) < 0.1  # random weights make much of little
    assert state["pre_conv"].dtype == torch.bfloat16
    assert state["position"].dtype == torch.int64


def broken(checkpoint: Path, folder: Path, change) -> Path:
    """A copy of the checkpoint whose tensors `change` has changed."""
    write_speech_tokenizer(folder)
    tensors = load_file(checkpoint / "speech_tokenizer" / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "speech_tokenizer" / "model.safetensors")
    return folder


def test_the_encoder_and_the_way_in_are_none_of_its_business(checkpoint, decoder, tmp_path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["encoder.layers.0.weight"] = torch.zeros(3)
        del tensors["decoder.quantizer.rvq_rest.input_proj.weight"]

    loaded = load_code2wav(broken(checkpoint, tmp_path, change))
    assert loaded.state_dict().keys() == decoder.state_dict().keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("decoder.decoder.1.block.0.alpha"), "missing: decoder.1.block.0.alpha"),
        (
            lambda tensors: tensors.pop("decoder.quantizer.rvq_rest.vq.layers.3._codebook.cluster_usage"),
            "missing: quantizer.rvq_rest.vq.layers.3._codebook.cluster_usage",
        ),
        (lambda tensors: tensors.update({"decoder.more": torch.zeros(1)}), "unexpected: more"),
        (
            lambda tensors: tensors.update({"decoder.pre_conv.conv.bias": torch.zeros(7)}),
            r"pre_conv.conv.bias is \(7,\)",
        ),
        (lambda tensors: tensors.update({"vocoder.weight": torch.zeros(1)}), "no known part, such as vocoder.weight"),
    ],
    ids=["no snake", "no usage", "one more", "another shape", "another part"],
)
def test_loading_is_strict(checkpoint, tmp_path, change, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_code2wav(broken(checkpoint, tmp_path, change))


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"upsample_rates": [8, 5, 4, 2]}, "1280 samples"),
        ({"num_quantizers": 1}, "at least 2"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"latent_dim": 41}, "the config asks for"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path, stated, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_code2wav(restated(tmp_path, stated))


def restated(folder: Path, stated: dict) -> Path:
    """The tiny checkpoint under another decoder_config."""
    write_speech_tokenizer(folder)
    path = folder / "speech_tokenizer" / "config.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"decoder_config": TINY | stated}))
    return folder


def test_a_cut_download_is_named(tmp_path) -> None:
    write_speech_tokenizer(tmp_path)
    file = tmp_path / "speech_tokenizer" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(PartialDownload, match="cut short"):
        load_code2wav(tmp_path)
