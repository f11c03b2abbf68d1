"""`songline doctor`: every look in turn, and its findings told."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from compose.checkpoint import bundled, demo_folder, deploy_file, family_asked_for, family_named
from compose.doctor import checkpoint_files, machine, redis_server, versions
from compose.doctor.finding import Finding, Level, ok, wrong
from compose.serve import deploy_settings, platform_here
from compose.trouble import FAILED, NO_CHECKPOINT, Trouble
from workers.settings import Settings

_NOWHERE = Path()  # in place of a checkpoint: some models' settings can be judged without one

Look = Callable[[], Iterable[Finding]]


def doctor(args: argparse.Namespace) -> int:
    found = list(findings(args))
    well = all(finding.level is not Level.WRONG for finding in found)
    if args.as_json:
        print(
            json.dumps({"ok": well, "findings": [asdict(finding) for finding in found]}, indent=2, ensure_ascii=False)
        )
    else:
        for finding in found:
            print(told(finding))
    return 0 if well else FAILED


def told(finding: Finding) -> str:
    level = finding.level.upper() if finding.level is Level.WRONG else finding.level
    line = f"{level:<5}  {finding.subject:<11}  {finding.said}"
    return f"{line}\n{'':20}→ {finding.advice}" if finding.advice else line


def findings(args: argparse.Namespace) -> Iterator[Finding]:
    """All that was found; a look that breaks is a finding itself."""
    folder, missing = checkpoint_files.find(args.checkpoint, args.revision, _unnamed(args))
    settings, refused = _settings(args, folder)
    yield from (finding for finding in (missing, refused) if finding)
    looks: list[tuple[str, Look]] = [
        ("packages", versions.versions),
        ("packages", lambda: [versions.vllm(settings.talker.model_runner if settings else "torch")]),
        ("processor", lambda: [machine.processor(_threads(settings))]),
        ("gpu", lambda: [machine.gpus(args.platform, _devices(settings))]),
        ("disk", lambda: machine.disks([args.home, folder])),
        ("port", lambda: [machine.port(args.host, args.port)]),
        ("redis", partial(redis_server.broker, args.broker)),
    ]
    if settings and folder:
        looks.append(("checkpoint", lambda: [_checkpoint(settings)]))
    for subject, look in looks:
        try:
            yield from look()
        except Exception as error:
            yield wrong(subject, f"cannot be looked at: {type(error).__name__}: {error}", "repair this first")


def _unnamed(args: argparse.Namespace) -> Path:
    """The checkpoint that `up` serves where none is named."""
    try:
        family = family_asked_for(args)
    except Trouble:  # of the deploy file, which is a finding of its own
        return demo_folder(args.model, args.home)
    own = bundled(family)
    return demo_folder(family.name, args.home) if own is None else own.folder


def _settings(args: argparse.Namespace, folder: Path | None) -> tuple[Settings | None, Finding | None]:
    """The deploy file's settings, where they can be judged; and what is to be said of them."""
    try:
        settings = deploy_settings(args, folder or _NOWHERE, platform=platform_here(args))
    except Trouble as trouble:
        if folder is None and trouble.code == NO_CHECKPOINT:
            return None, None
        return None, wrong("deploy file", str(trouble), "change --config or --model, or the file itself")
    return settings, ok("deploy file", f"{deploy_file(args)}, model_runner {settings.talker.model_runner}")


def _checkpoint(settings: Settings) -> Finding:
    return checkpoint_files.whole(settings.checkpoint, family_named(settings.family), settings.talker.max_model_len)


def _threads(settings: Settings | None) -> int | None:
    return settings.talker.threads + settings.acoustic.threads if settings else None


def _devices(settings: Settings | None) -> list[str]:
    stages = (settings.talker, settings.acoustic) if settings else ()
    return [str(stage.options.get("device", "cpu")) for stage in stages]
