"""Checkpoints: whole or named as partial, loaded strictly, made by seed, and scaled so that every stage is heard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_checkpoint import tiny_checkpoint
from workers.checkpoints import (
    CheckpointError,
    PartialDownload,
    fill_module,
    load_component,
    resolve_checkpoint,
    weight_files,
    weights_digest,
)
from workers.models import random_weights
from workers.models.minimax_music3 import checkpoint, config
from workers.models.minimax_music3.acoustic import load_acoustic, load_module
from workers.models.minimax_music3.noise import solver_noise

COMPONENTS = ("vocoder", "condition_encoder")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CPU, FLOAT32 = torch.device("cpu"), torch.float32


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy to break; without the language model, for speed."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint(), copy, ignore=shutil.ignore_patterns("language_model", "tokenizer"))
    return copy


def shard(component: Path, shards: int) -> list[str]:
    """Split a component's single file."""
    single = component / "diffusion_pytorch_model.safetensors"
    tensors = load_file(single)
    single.unlink()
    weight_map = {}
    for number in range(shards):
        name = f"diffusion_pytorch_model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        save_file(part, component / name)
        weight_map |= dict.fromkeys(part, name)
    index = component / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return sorted(set(weight_map.values()))


def into_cache(folder: Path, cache: Path) -> Path:
    """Lay a checkpoint out as Hugging Face's cache does; returns the snapshot."""
    import hashlib

    repo = cache / "models--someone--songs"
    snapshot = repo / "snapshots" / COMMIT
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    (repo / "blobs").mkdir()
    for file in (path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        large = file.suffix == ".safetensors"
        name = hashlib.sha256(content).hexdigest() if large else hashlib.sha1(content).hexdigest()
        (repo / "blobs" / name).write_bytes(content)
        link = snapshot / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(repo / "blobs" / name)
    return snapshot


@pytest.fixture
def offline_cache(folder: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return into_cache(folder, tmp_path / "cache")


class TestResolve:
    def test_folder(self, folder: Path) -> None:
        assert resolve_checkpoint(str(folder)) == folder

    def test_a_folder_has_no_revision(self, folder: Path) -> None:
        with pytest.raises(CheckpointError, match=r"is a folder: a revision"):
            resolve_checkpoint(str(folder), "v1")

    def test_nothing_there(self) -> None:
        with pytest.raises(CheckpointError, match=r"neither a folder nor a Hugging Face repo id"):
            resolve_checkpoint("/no/such/folder")

    @pytest.mark.parametrize("revision", [None, "main", COMMIT])
    def test_offline_cache(self, revision: str | None, offline_cache: Path) -> None:
        assert resolve_checkpoint("someone/songs", revision) == offline_cache

    def test_revision_that_the_cache_lacks(self, offline_cache: Path) -> None:
        with pytest.raises(
            CheckpointError, match=r"someone/songs at revision v2 is not in the cache .*HF_HUB_OFFLINE is set"
        ):
            resolve_checkpoint("someone/songs", "v2")

    def test_repo_that_the_cache_lacks(self, offline_cache: Path) -> None:
        with pytest.raises(CheckpointError, match=r"someone/else at revision main is not in the cache"):
            resolve_checkpoint("someone/else")

    def test_partial_cache(self, offline_cache: Path) -> None:
        (offline_cache / "vocoder" / "diffusion_pytorch_model.safetensors").resolve().unlink()
        with pytest.raises(
            PartialDownload, match=r"vocoder/diffusion_pytorch_model.safetensors points to a file that is not"
        ):
            resolve_checkpoint("someone/songs")

    def test_weights_not_downloaded(self, offline_cache: Path) -> None:
        (offline_cache / "vocoder" / "diffusion_pytorch_model.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"vocoder has no weights: neither model.safetensors or"):
            resolve_checkpoint("someone/songs")

    def test_what_the_index_does_not_name_is_not_asked_for(self, folder: Path) -> None:
        (folder / "other_format").mkdir()
        (folder / "other_format" / "config.json").write_text("{}")
        assert resolve_checkpoint(str(folder)) == folder


class TestWeightFiles:
    def test_sharded_is_single(self, folder: Path) -> None:
        single = load_component(folder, "vocoder")
        shard(folder / "vocoder", 3)
        sharded = load_component(folder, "vocoder")
        assert single.keys() == sharded.keys()
        assert all(torch.equal(single[name], sharded[name]) for name in single)

    def test_missing_shards_are_named(self, folder: Path) -> None:
        names = shard(folder / "vocoder", 4)
        for name in names[1:3]:
            (folder / "vocoder" / name).unlink()
        with pytest.raises(PartialDownload, match=r"2 of the 4 files") as caught:
            load_component(folder, "vocoder")
        assert names[1] in str(caught.value)
        assert names[2] in str(caught.value)
        assert names[0] not in str(caught.value)

    def test_incomplete_file_is_named(self, folder: Path) -> None:
        single = folder / "vocoder" / "diffusion_pytorch_model.safetensors"
        single.rename(single.with_name(single.name + ".abc.incomplete"))
        with pytest.raises(PartialDownload, match=r"cut short: diffusion_pytorch_model.safetensors.abc.incomplete"):
            weight_files(folder, "vocoder")

    def test_incomplete_download_into_a_folder_is_named(self, folder: Path) -> None:
        name = shard(folder / "vocoder", 2)[1]
        (folder / "vocoder" / name).unlink()
        begun = folder / ".cache" / "huggingface" / "download" / "vocoder"
        begun.mkdir(parents=True)
        (begun / "xyz.incomplete").touch()
        with pytest.raises(PartialDownload, match=r"1 of the 2 files .*cut short: xyz.incomplete"):
            weight_files(folder, "vocoder")

    def test_truncated_file_is_named(self, folder: Path) -> None:
        single = folder / "vocoder" / "diffusion_pytorch_model.safetensors"
        single.write_bytes(single.read_bytes()[:-100])
        with pytest.raises(PartialDownload, match=r"diffusion_pytorch_model.safetensors is cut short or broken"):
            load_component(folder, "vocoder")

    def test_shards_without_an_index(self, folder: Path) -> None:
        shard(folder / "vocoder", 2)
        (folder / "vocoder" / "diffusion_pytorch_model.safetensors.index.json").unlink()
        with pytest.raises(PartialDownload, match=r"has shards .* but no index"):
            weight_files(folder, "vocoder")

    def test_missing_component(self, folder: Path) -> None:
        shutil.rmtree(folder / "vocoder")
        with pytest.raises(
            CheckpointError, match=r"no component 'vocoder'; it has: condition_encoder, rvq_depth_decoder"
        ):
            load_component(folder, "vocoder")

    def test_index_and_shards_must_agree(self, folder: Path) -> None:
        shard(folder / "vocoder", 2)
        index = folder / "vocoder" / "diffusion_pytorch_model.safetensors.index.json"
        stated = json.loads(index.read_text())
        moved = stated["weight_map"].pop("conv_out.bias")
        stated["weight_map"]["conv_out.tilt"] = moved
        index.write_text(json.dumps(stated))
        with pytest.raises(
            CheckpointError, match=r"only in the index: conv_out.tilt; only in the shards: conv_out.bias"
        ):
            load_component(folder, "vocoder")


class TestStrictLoading:
    def change(self, folder: Path, change) -> None:
        file = folder / "condition_encoder" / "diffusion_pytorch_model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    def load(self, folder: Path) -> torch.nn.Module:
        return load_module(folder, "condition_encoder", CPU, FLOAT32)

    def test_missing_key(self, folder: Path) -> None:
        self.change(folder, lambda tensors: tensors.pop("proj.bias"))
        with pytest.raises(CheckpointError, match=r"condition_encoder do not fit its config: missing: proj.bias"):
            self.load(folder)

    def test_unexpected_key(self, folder: Path) -> None:
        self.change(folder, lambda tensors: tensors.update({"proj.gain": torch.ones(1)}))
        with pytest.raises(CheckpointError, match=r"unexpected: proj.gain"):
            self.load(folder)

    def test_every_shape_mismatch_is_listed(self, folder: Path) -> None:
        self.change(folder, lambda tensors: tensors.update({"proj.bias": torch.ones(3), "layer_scale": torch.ones(2)}))
        with pytest.raises(CheckpointError) as caught:
            self.load(folder)
        assert "proj.bias is (3,), the config asks for (32,)" in str(caught.value)
        assert "layer_scale is (2,), the config asks for (1,)" in str(caught.value)

    def test_nothing_is_cast(self, folder: Path) -> None:
        self.change(folder, lambda tensors: tensors.update({"proj.bias": tensors["proj.bias"].half()}))
        tensors = load_component(folder, "condition_encoder")
        assert tensors["proj.bias"].dtype == torch.float16
        module = self.load(folder)
        fill_module(module, tensors, "condition_encoder")
        assert module.proj.bias.dtype == torch.float16

    def test_another_class_is_refused(self, folder: Path) -> None:
        stated = json.loads((folder / "vocoder" / "config.json").read_text())
        (folder / "vocoder" / "config.json").write_text(json.dumps(stated | {"_class_name": "AutoencoderKL"}))
        with pytest.raises(CheckpointError, match=r"vocoder is a AutoencoderKL, not a MiniMaxMusic3Vocoder"):
            load_acoustic(folder, {})

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"invert_sigmas": False}, "inverted sigmas"),
            ({"num_train_timesteps": 1000}, "num_train_timesteps 1"),
            ({"stochastic_sampling": True}, "would not be repeatable"),
        ],
    )
    def test_another_schedule_is_refused(self, changed: dict, message: str, folder: Path) -> None:
        file = folder / "scheduler" / "scheduler_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))
        with pytest.raises(CheckpointError, match=message):
            load_acoustic(folder, {})


class TestDigest:
    def test_the_cache_and_a_folder_agree(self, folder: Path, tmp_path: Path) -> None:
        snapshot = into_cache(folder, tmp_path / "cache")
        assert weights_digest(snapshot, COMPONENTS) == weights_digest(folder, COMPONENTS)

    def test_weights_and_configs_count(self, folder: Path) -> None:
        seen = {weights_digest(folder, COMPONENTS)}
        for name in ("diffusion_pytorch_model.safetensors", "config.json"):
            file = folder / "vocoder" / name
            content = bytearray(file.read_bytes())
            content[-2] ^= 1
            file.write_bytes(content)
            seen.add(weights_digest(folder, COMPONENTS))
        assert len(seen) == 3

    def test_a_readme_does_not(self, folder: Path) -> None:
        before = weights_digest(folder, COMPONENTS)
        for name in ("README.md", "LICENSE", "sample.wav"):
            (folder / "vocoder" / name).write_text("words")
        assert weights_digest(folder, COMPONENTS) == before

    def test_other_components_do_not(self, folder: Path) -> None:
        before = weights_digest(folder, COMPONENTS)
        shutil.rmtree(folder / "transformer")
        assert weights_digest(folder, COMPONENTS) == before
        assert weights_digest(folder, reversed(COMPONENTS)) == before
        assert weights_digest(folder, COMPONENTS[:1]) != before


class TestMaking:
    def test_same_seed_same_bytes(self, tmp_path: Path) -> None:
        every = (
            "language_model",
            "tokenizer",
            "rvq_depth_decoder",
            "condition_encoder",
            "transformer",
            "vocoder",
            "scheduler",
        )
        for seed in (0, 1):
            checkpoint.make_checkpoint(tmp_path / str(seed), "tiny", seed)
        assert weights_digest(tmp_path / "0", every) == weights_digest(tiny_checkpoint(), every)
        assert weights_digest(tmp_path / "0", every) != weights_digest(tmp_path / "1", every)
        assert sum(file.stat().st_size for file in (tmp_path / "0").rglob("*") if file.is_file()) < 120e6

    def test_shards_change_nothing(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(random_weights, "_SHARD_BYTES", 100_000)
        checkpoint.make_checkpoint(tmp_path, "tiny", 0)
        assert len(weight_files(tmp_path, "rvq_depth_decoder")) > 3
        for component in ("language_model", "rvq_depth_decoder", "transformer"):
            sharded, single = load_component(tmp_path, component), load_component(tiny_checkpoint(), component)
            assert sharded.keys() == single.keys()
            assert all(torch.equal(sharded[name], single[name]) for name in single)

    def test_refuses_a_full_folder_and_an_unknown_size(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(FileExistsError):
            checkpoint.make_checkpoint(folder, "tiny", 0)
        with pytest.raises(ValueError, match=r"no size 'huge'; there are: tiny, true"):
            checkpoint.make_checkpoint(tmp_path / "new", "huge", 0)

    def test_true_size_has_the_published_widths(self) -> None:
        """Counted, not written: 8.6 billion parameters of the backbone, 2.43 of the transformer."""
        widths = checkpoint.SIZES["true"]
        backbone = checkpoint.language_model_weights(widths)
        assert sum(np.prod(weight.shape, dtype=int) for weight in backbone) / 1e9 == pytest.approx(8.6, abs=0.1)
        transformer = checkpoint.meta_module(config.TRANSFORMER, widths.transformer)
        assert sum(tensor.numel() for tensor in transformer.parameters()) / 1e9 == pytest.approx(2.43, abs=0.01)

    def test_the_names_are_those_that_transformers_reads(self) -> None:
        from transformers import Qwen3ForCausalLM

        _, report = Qwen3ForCausalLM.from_pretrained(tiny_checkpoint() / "language_model", output_loading_info=True)
        assert not any(report.values())


def rms(values) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(values, np.float64)))))


class TestScale:
    """Every stage's output has an RMS between 0.05 and 0.5."""

    LOUD, QUIET = 0.5, 0.05

    @pytest.fixture(scope="class")
    def hidden(self) -> torch.Tensor:
        """(2, 300, hidden): the backbone's, with and without a prompt, over frames of random codes."""
        from transformers import Qwen3ForCausalLM

        backbone = Qwen3ForCausalLM.from_pretrained(tiny_checkpoint() / "language_model").eval().model
        depth = load_module(tiny_checkpoint(), config.DEPTH_DECODER, CPU, FLOAT32)
        draw = torch.Generator().manual_seed(0)
        text = torch.randint(0, 151_643, (80,), generator=draw)
        prompts = torch.stack((text, torch.full_like(text, config.AUDIO_CFG)))
        c0 = torch.randint(0, config.SEMANTIC_CODES, (300,), generator=draw)
        rest = torch.randint(0, config.RESIDUAL_CODES, (300, 7), generator=draw) + 1_024 * torch.arange(7)
        with torch.inference_mode():
            frames = backbone.embed_tokens(c0 + config.CODE_OFFSET) + depth.audio_embeddings(rest).sum(1)
            inputs = torch.cat((backbone.embed_tokens(prompts), (frames * 8**-0.5).expand(2, -1, -1)), dim=1)
            return backbone(inputs_embeds=inputs).last_hidden_state[:, 80:]

    @pytest.fixture(scope="class")
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(2, 300, 1 + 16384): the end, and the codes."""
        head = load_component(tiny_checkpoint(), "language_model")["lm_head.weight"]
        rows = torch.cat((head[config.AUDIO_END, None], head[config.CODE_OFFSET : config.MIN_VOCABULARY]))
        return hidden @ rows.T

    def in_range(self, values) -> bool:
        return self.QUIET < rms(values) < self.LOUD

    def test_backbone(self, hidden: torch.Tensor) -> None:
        assert self.in_range(hidden)
        assert rms(hidden[0] - hidden[1]) > 0.02  # the prompt is heard

    def test_logits_are_not_flat(self, logits: torch.Tensor) -> None:
        assert 2 < logits.std() < 3

    def test_songs_end_by_themselves(self, logits: torch.Tensor) -> None:
        """One frame in 150 to 1,500 ends the song, by the draw's own rule."""
        conditional, unconditional = logits
        guided = unconditional + (conditional - unconditional) * config.GUIDANCE
        guided[conditional < conditional.topk(50).values[:, -1:]] = -torch.inf
        guided[guided < guided.topk(50).values[:, -1:]] = -torch.inf
        assert 1 / 1_500 < guided.softmax(-1)[:, 0].mean() < 1 / 150

    def test_depth_decoder(self, hidden: torch.Tensor) -> None:
        depth = load_module(tiny_checkpoint(), config.DEPTH_DECODER, CPU, FLOAT32)
        with torch.inference_mode():
            codes = torch.randint(0, 7 * config.RESIDUAL_CODES, (300, 7), generator=torch.Generator().manual_seed(0))
            steps = torch.cat((hidden[0, :, None], depth.audio_embeddings(codes)), dim=1)
            states = depth(depth.projection(steps))
            assert self.in_range(states)
            assert 2 < torch.cat([head(states) for head in depth.audio_heads]).std() < 3

    def test_acoustic_stages(self) -> None:
        acoustic = load_acoustic(tiny_checkpoint(), {})
        encoder = load_module(tiny_checkpoint(), config.CONDITION_ENCODER, CPU, FLOAT32)
        slices = 0.3 * torch.randn(8, 100, 64, generator=torch.Generator().manual_seed(0))
        mix = encoder.layer_scale * torch.einsum("sfh,s->fh", slices, encoder.layer_weight_logits.softmax(0))
        assert self.in_range(mix)
        with torch.inference_mode():
            condition = acoustic.condition(mix.numpy(), None)
            assert self.in_range(condition)
            noise = torch.from_numpy(solver_noise(0, 0, acoustic.latent_channels, condition.shape[1]))[None]
            latents = acoustic.solve(condition, noise, None, lambda: None)
            assert self.in_range(latents)
            unheard = acoustic.solve(torch.zeros_like(condition), noise, None, lambda: None)
            assert rms(latents - unheard) > 0.05  # the condition is heard
            waveform = acoustic.waveform(latents, first=True, last=True)
        assert self.in_range(waveform)
        assert waveform.abs().max() < 1  # and not clipped
