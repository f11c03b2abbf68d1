"""What the family's package promises before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.tiny_checkpoint import tiny_checkpoint
from workers.models.family import load_family
from workers.models.minimax_music3 import FAMILY, config

READ_A_CONTRACT = """
import json, sys
from pathlib import Path
from workers.models.family import load_family
contract = load_family("minimax_music3").contract(Path(sys.argv[1]), 10_240)
contract.accept({"input": "la", "instructions": "a waltz"})
print(json.dumps(sorted({"torch", "diffusers", "transformers"} & sys.modules.keys())))
"""


def test_the_contract_loads_no_framework() -> None:
    command = [sys.executable, "-c", READ_A_CONTRACT, str(tiny_checkpoint())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_is_found_by_its_folder() -> None:
    assert load_family("minimax_music3") is FAMILY
    with pytest.raises(LookupError, match=r"there are: .*minimax_music3"):
        load_family("minimax_music4")


def test_every_component_of_the_checkpoint_is_some_stage_s() -> None:
    folders = {path.name for path in tiny_checkpoint().iterdir() if path.is_dir()}
    assert folders == {*FAMILY.talker_components, *FAMILY.acoustic_components}


def test_the_authors_pipeline_finds_every_component() -> None:
    from diffusers import ModularPipeline

    pipeline = ModularPipeline.from_pretrained(tiny_checkpoint())
    assert type(pipeline).__name__ == "MiniMaxMusic3ModularPipeline"
    specs = {name: pipeline.get_component_spec(name) for name in pipeline.pretrained_component_names}
    assert specs.keys() == {
        config.TOKENIZER, config.LANGUAGE_MODEL, config.DEPTH_DECODER, config.CONDITION_ENCODER, config.TRANSFORMER,
        config.SCHEDULER, config.VOCODER,
    }  # fmt: skip
    pipeline.load_components()
    assert all(getattr(pipeline, name) is not None for name in specs)
