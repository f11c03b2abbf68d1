"""The roles as processes: the api with its sweeper, a talker, an acoustic worker, or all of them in one."""

from __future__ import annotations

import argparse
import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from broker_schemas import keys
from broker_schemas.heartbeat import worker_name
from compose import checkpoint
from compose.broker import LOCAL_REDIS, EmbeddedBroker, connect
from compose.port import listening_socket
from compose.stopping import Stop
from compose.threads import RoleThreads
from compose.trouble import NO_CHECKPOINT, USAGE, Trouble

if TYPE_CHECKING:
    from compose.api_server import ApiServer
    from workers.settings import Settings

_Stage = TypeVar("_Stage")

_log = logging.getLogger("songline")


def deploy_settings(args: argparse.Namespace, folder: Path, platform: str) -> Settings:
    """The model as the deploy file has it, and then the flags. `platform` is where no flag says. Raises Trouble."""
    from workers.checkpoints import CheckpointError
    from workers.settings import BadSettings, load

    overrides = {}
    if getattr(args, "threads", None):
        overrides = {role: {"threads": args.threads} for role in keys.ROLES}
    try:
        return load(checkpoint.deploy_file(args), folder, overrides=overrides, platform=args.platform or platform)
    except (BadSettings, LookupError) as error:
        raise Trouble(str(error), USAGE) from error
    except CheckpointError as error:
        raise Trouble(str(error), NO_CHECKPOINT) from error


def platform_here(args: argparse.Namespace) -> str:
    """What is computed on where no flag says: what this machine has, for a checkpoint that was named.

    Others, the bundled one and a tiny random one, need no GPU, nor what a GPU's runner needs.
    """
    if not args.checkpoint:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def up(args: argparse.Namespace) -> None:
    """All roles in one process."""
    with listening_socket(args.host, args.port) as sock:
        from compose.api_server import api_server
        from compose.archiving import archiver_of
        from workers.run import load_acoustic, load_talker, run_acoustic, run_talker

        folder = _checkpoint(args, demo=True)
        settings = deploy_settings(args, folder, platform=platform_here(args))
        _refuse_to_share(settings)
        broker = connect(args.broker) if args.broker else EmbeddedBroker()
        if not broker.durable:
            _log.warning("the broker is embedded: jobs and sound are gone when this process ends")
        server = api_server(args, broker, settings)
        archiver = archiver_of(args, broker) if args.archive else None
        stop = Stop(also=server.finish)
        threads = RoleThreads(stop, on_death=server.finish)
        threads.start(keys.TALKER, partial(run_talker, broker, settings, loaded=_loaded(load_talker, settings)))
        threads.start(keys.ACOUSTIC, partial(run_acoustic, broker, settings, loaded=_loaded(load_acoustic, settings)))
        if archiver:
            threads.start("archiver", archiver.run)
        _serve(args, server, sock, settings.model, stop, threads)


def _refuse_to_share(settings: Settings) -> None:
    """Raises Trouble where the stages cannot be in one process."""
    if settings.talker.batch_invariant and settings.talker.model_runner != "torch":
        raise Trouble(
            "talker.batch_invariant changes the arithmetic of its whole process, and `up` has the acoustic stage in "
            "it: start `songline talker` and `songline acoustic` beside `songline api`, or leave it out",
            USAGE,
        )


def api(args: argparse.Namespace) -> None:
    """The api, and a sweeper beside it."""
    with listening_socket(args.host, args.port) as sock:
        from compose.api_server import api_server
        from workers.sweep import Sweeper

        settings = deploy_settings(args, _checkpoint(args), platform="cpu")  # not worth loading torch to ask
        broker = connect(args.broker or LOCAL_REDIS)
        server = api_server(args, broker, settings)
        stop = Stop(also=server.finish)
        threads = RoleThreads(stop, on_death=server.finish)
        sweeper = Sweeper(broker.client(), name=worker_name("sweeper"), settings=settings.leases)
        threads.start("sweeper", sweeper.run)
        _serve(args, server, sock, settings.model, stop, threads)


def talker(args: argparse.Namespace) -> None:
    from workers.run import load_talker, run_talker

    _work(args, load_talker, run_talker)


def acoustic(args: argparse.Namespace) -> None:
    from workers.run import load_acoustic, run_acoustic

    _work(args, load_acoustic, run_acoustic)


def _work(args: argparse.Namespace, load: Callable[[Settings], object], run: Callable[..., None]) -> None:
    settings = deploy_settings(args, _checkpoint(args), platform=platform_here(args))
    broker = connect(args.broker or LOCAL_REDIS)
    stop = Stop()
    stop.listen()
    run(broker, settings, stop, name=args.name, loaded=_loaded(load, settings))


def _loaded(load: Callable[[Settings], _Stage], settings: Settings) -> _Stage:
    """A stage with its weights in memory. Raises Trouble."""
    from workers.checkpoints import CheckpointError
    from workers.settings import BadSettings

    try:
        return load(settings)
    except CheckpointError as error:
        raise Trouble(str(error), NO_CHECKPOINT) from error
    except BadSettings as error:
        raise Trouble(str(error), USAGE) from error


def _checkpoint(args: argparse.Namespace, *, demo: bool = False) -> Path:
    family = checkpoint.family_asked_for(args)
    if args.checkpoint:
        return checkpoint.find(args.checkpoint, family.name, args.revision)
    if args.revision:
        raise Trouble("--revision is of a checkpoint that is a repository: name that by --checkpoint", USAGE)
    if (own := checkpoint.bundled(family)) is not None:
        _log.info("no checkpoint was named: serving the one that Songline has, at %s", own.folder)
        return own.folder
    if demo:
        folder = checkpoint.demo(family.name, args.home)
        _log.warning("no checkpoint was named: serving the tiny random one at %s, which makes noise", folder)
        return folder
    return checkpoint.find(None, family.name, None)


def _serve(
    args: argparse.Namespace, server: ApiServer, sock: socket.socket, model: str, stop: Stop, threads: RoleThreads
) -> None:
    stop.listen()
    host, port = sock.getsockname()[:2]
    _log.info("serving %s at http://%s:%d", model, f"[{host}]" if ":" in host else host, port)
    try:
        server.run(sockets=[sock])
    finally:
        stop.set()
    threads.join(args.grace)
