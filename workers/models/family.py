"""The interface of a model family: one folder below this one, which touches no other.

A family knows no broker and no runner. It gives the contract that the api checks requests with, the talker's model
(prompt, frame feedback, the draw) that every runner calls, and the acoustic stage.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from broker_schemas.contract import Contract
from broker_schemas.events import JobRequested
from workers.talker.loops import LoopGuard
from workers.talker.windows import Plan

if TYPE_CHECKING:  # the api reads contracts only, and stays light
    import torch

    from workers.runners.torch_qwen3 import Qwen3


# Token ids (n,) int64 -> (n, hidden).
EmbedTokens = Callable[["torch.Tensor"], "torch.Tensor"]


@dataclass(slots=True)
class Drawing:
    """Who draws in a step. All but `conditioning` are tensors on the runner's device, one entry for each of `slots`.

    slots: (n,) int64, job slots, each at most once. seeds: (n,) int64. draws: (n,) int64, each job's draw index.
    repeats: (n,) bool, or None for nobody: the draw is not drawn, but is one that the job has already made.
    conditioning: whether any slot's conditioning is wanted. history: (jobs, draws, codebooks) int64, by slot the codes
    of its draws so far; what lies at its draw index and after is rubbish.
    """

    slots: torch.Tensor
    seeds: torch.Tensor
    draws: torch.Tensor
    history: torch.Tensor
    repeats: torch.Tensor | None = None
    conditioning: bool = True


@dataclass(slots=True)
class Draws:
    """One draw for every job slot of a padded batch; slots without a job hold rubbish.

    codes: (jobs, codebooks) int64. ended: (jobs,) bool, the model ended the song at this draw. conditioning: (jobs,
    width) float32, what the acoustic stage needs of the frame besides its codes; width may be 0.
    """

    codes: torch.Tensor
    ended: torch.Tensor
    conditioning: torch.Tensor


class TalkerModel(Protocol):
    """What a family's talker is to a runner. All tensors are on the runner's device."""

    rows: int  # rows that a job takes in the batch, 2 where it is guided; they live and die together
    codebooks: int
    lead: int  # draws before the first frame
    context: int  # positions that the backbone has

    @property
    def backbone(self) -> Qwen3:
        """The decoder, in the layout of Hugging Face's Qwen3Model. Raises LookupError where an engine has it."""
        ...

    def prompts(
        self, request: JobRequested, reference: Reference | None = None, context: np.ndarray | None = None
    ) -> list[list[int]]:
        """Token ids of each of the job's rows, all of one length. A runner looks at no more than their number.

        Args:
            context: (frames, codebooks) int16, of a passage that goes on from what was said before: what the prompt
                ends with. Only where the family's contract makes passages (see `workers.talker.passages`).
        """
        ...

    def max_frames(self, request: JobRequested) -> int: ...

    def bind(
        self,
        slot: int,
        request: JobRequested,
        prompts: list[list[int]],
        reference: Reference | None = None,
        context: np.ndarray | None = None,
    ) -> None:
        """A job has got a slot: lay down by slot all that depends on its request. Comes before all else for the job."""
        ...

    def embed_prompt(self, slot: int, row: int, start: int, end: int) -> torch.Tensor:
        """(end - start, hidden): the input embeddings of these positions of a row's prompt."""
        ...

    def feedback(self, codes: torch.Tensor, slots: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """The input embedding that follows each of n draws; its bits do not depend on n.

        Args:
            codes: (n, codebooks) int64.
            slots, draws: (n,) int64, whose draw it was, and which.

        Returns:
            (n, hidden).
        """
        ...

    def compile_draw(self) -> None:
        """Have torch.compile fuse small kernels of `draw`, and of nothing else: in a resumed song the feedback is
        computed in other company, and must round alike."""
        ...

    def draw(self, hidden: torch.Tensor, codes: torch.Tensor, drawing: Drawing) -> Draws:
        """Draw a frame for the slots of `drawing`, at one padded shape. Never waits for the device on CUDA.

        Args:
            hidden: (rows, jobs, hidden), the backbone's newest hidden states.
            codes: (jobs, codebooks) int64, of the slots that repeat a draw or are not in `drawing`: theirs. Filled in.
        """
        ...


class Dropped(Exception):
    """The caller no longer wants the window that is being decoded."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window to decode.

    frames: (frames, width) float32, all frames of the window, shared ones included; or where the stage's width is 0
    their codes, (frames, codebooks) int16. state: what the previous window gave; {} for the first. check: called now
    and then; raises Dropped when the job is over. reference: with window 0, for a voice that is cloned in context: the
    codes that its sound goes on from, (frames, codebooks) int16.
    """

    frames: np.ndarray
    index: int
    last: bool
    seed: int
    state: dict[str, Any]
    check: Callable[[], None]
    reference: np.ndarray | None = None


class Decoded(NamedTuple):
    """A window's own sound, (samples, channels) int16, and the state for the next window."""

    pcm: np.ndarray
    state: dict[str, Any]


class AcousticModel(Protocol):
    """A family's acoustic stage: frames in, sound out, window by window.

    State is plain data that the caller owns: a dict of arrays, so that it can be stored, moved and taken up again.
    """

    sample_rate: int
    channels: int
    width: int  # of a frame's conditioning; 0 where the stage needs a frame's codes and no more
    keeps_state: bool  # whether the state is stored with each chunk; else windows are decoded again after a takeover

    batch: int  # windows that one call decodes at most

    def shape(self, frames: int, *, last: bool) -> tuple[int, ...]:
        """What a window of so many frames costs: those of one shape are best decoded together."""
        ...

    def windows(self, asked: Sequence[Window]) -> list[Decoded | None]:
        """Decode windows of different jobs; each has the bytes that it would have alone.

        Returns:
            For each its sound and state, or None where its `check` raised Dropped, which harms no other.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reference:
    """What a recording of a voice becomes for a model that clones it.

    speaker: (width,) float32. codes: (frames, codebooks) int16; None where only the voice's colour was asked for.
    """

    speaker: np.ndarray
    codes: np.ndarray | None


class ReferenceModel(Protocol):
    """Encodes recordings: the same one gives the same bits."""

    def wants_codes(self, request: JobRequested) -> bool: ...

    def encode(self, pcm: np.ndarray, rate: int, with_codes: bool) -> Reference:
        """pcm: (samples,) float32, at `rate` Hz."""
        ...


@dataclass(frozen=True, slots=True)
class Backbone:
    """Where an engine finds the talker's decoder among a component's weights.

    config: as the config.json of a Qwen3ForCausalLM. prefix: of the names of its layers, its last norm and its
    embedding table. embed: the table's name after that. beside: prefixes of the weights that are others'.
    """

    checkpoint: Path
    component: str
    config: dict[str, Any]
    prefix: str
    embed: str
    beside: tuple[str, ...]

    def renamed(self, weight: str) -> str | None:
        """A weight's name in a Qwen3Model; None for one that is another's."""
        if weight.startswith(self.beside):
            return None
        name = weight.removeprefix(self.prefix)
        return name.replace(self.embed, "embed_tokens", 1) if name.startswith(f"{self.embed}.") else name


@dataclass(frozen=True, slots=True)
class Bundled:
    """A checkpoint that comes with the family, in its own folder.

    folder: where it lies. config: the deploy file that it is served with, where no other is named.
    """

    folder: Path
    config: str


@dataclass(frozen=True, slots=True)
class Family:
    """What `workers.models.<name>` exports as FAMILY."""

    name: str
    plan: Callable[[JobRequested], Plan]
    longest_span: int  # the most frames that a terminal span's windows cover
    codebooks: Callable[[Path], int]  # checkpoint folder; codes of a frame
    rows: int  # of a job in the talker's batch
    talker_components: tuple[str, ...]  # folders of the checkpoint that the talker reads
    acoustic_components: tuple[str, ...]
    sizes: tuple[str, ...]  # of the random checkpoints that it can make
    contract: Callable[[Path, int], Contract]  # checkpoint folder, positions of a row; reads configs and tokenizer only
    backbone: Callable[[Path], Backbone]  # checkpoint folder
    # Checkpoint folder, the deploy file's talker options, and the embedding table of an engine that runs the backbone
    # itself: with one, no backbone is loaded.
    talker: Callable[[Path, dict[str, Any], EmbedTokens | None], TalkerModel]
    acoustic: Callable[[Path, dict[str, Any]], AcousticModel]  # checkpoint folder, the deploy file's acoustic section
    make_checkpoint: Callable[[Path, str, int], None]  # folder, size, seed
    loops: LoopGuard | None = None  # ends jobs whose frames only repeat; None where they may
    # Checkpoint folder and the talker's options; None for a checkpoint that clones no voices.
    reference: Callable[[Path, dict[str, Any]], ReferenceModel | None] = lambda folder, options: None
    bundled: Bundled | None = None


def load_family(name: str) -> Family:
    """The family by its folder's name; raises LookupError naming those there are."""
    known = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py"))
    if name not in known:
        raise LookupError(f"no model family {name!r}; there are: {', '.join(known)}")
    return importlib.import_module(f"workers.models.{name}").FAMILY
