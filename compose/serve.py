"""The roles as processes: the api with its sweeper, a talker, an acoustic worker, or all of them in one."""

from __future__ import annotations

import argparse
import errno
import logging
import socket
from contextlib import contextmanager
from pathlib import Path

from broker_schemas import keys
from broker_schemas.connection import Broker
from compose import checkpoint
from compose.broker import LOCAL_REDIS, connect
from compose.embedded import EmbeddedBroker
from compose.names import worker_name
from compose.stopping import Stop
from compose.threads import RoleThreads
from compose.trouble import PORT_TAKEN, USAGE, Trouble

_log = logging.getLogger("songline")


def deploy_settings(args: argparse.Namespace, folder: Path):
    """The model as the deploy file has it, and then the flags. Raises Trouble."""
    from workers.settings import BadSettings, load

    overrides = {}
    if getattr(args, "threads", None):
        overrides = {role: {"threads": args.threads} for role in keys.ROLES}
    try:
        return load(str(args.config or args.model), folder, overrides=overrides)
    except (BadSettings, LookupError) as error:
        raise Trouble(str(error), USAGE) from error


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound and listening, so that a taken port is known at once. Raises Trouble."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} is in use: choose another with --port, or 0 for a free one"
            raise Trouble(message, PORT_TAKEN) from error
        raise Trouble(f"cannot listen at {host} port {port}: {error.strerror or error}", USAGE) from error


def up(args: argparse.Namespace) -> None:
    """All roles in one process."""
    with listening_socket(args.host, args.port) as sock:
        folder = _checkpoint(args, demo=True)
        settings = deploy_settings(args, folder)
        broker = connect(args.broker) if args.broker else EmbeddedBroker()
        if not broker.durable:
            _log.warning("the broker is embedded: jobs and sound are gone when this process ends")
        server = _api_server(args, broker, settings)
        stop = Stop(also=server.finish)
        threads = RoleThreads(stop, on_death=server.finish)
        from workers.run import run_acoustic, run_talker

        threads.start("talker", lambda stop: run_talker(broker, settings, stop, name=worker_name(keys.TALKER)))
        threads.start("acoustic", lambda stop: run_acoustic(broker, settings, stop, name=worker_name(keys.ACOUSTIC)))
        _serve(args, server, sock, settings.model, stop, threads)


def api(args: argparse.Namespace) -> None:
    """The api, and a sweeper beside it."""
    from workers.sweep import Sweeper

    with listening_socket(args.host, args.port) as sock:
        settings = deploy_settings(args, _checkpoint(args))
        broker = connect(args.broker or LOCAL_REDIS)
        server = _api_server(args, broker, settings)
        stop = Stop(also=server.finish)
        threads = RoleThreads(stop, on_death=server.finish)
        sweeper = Sweeper(broker.client(), name=worker_name("sweeper"), settings=settings.leases)
        threads.start("sweeper", sweeper.run)
        _serve(args, server, sock, settings.model, stop, threads)


def talker(args: argparse.Namespace) -> None:
    from workers.run import run_talker

    _work(args, keys.TALKER, run_talker)


def acoustic(args: argparse.Namespace) -> None:
    from workers.run import run_acoustic

    _work(args, keys.ACOUSTIC, run_acoustic)


def _work(args: argparse.Namespace, role: str, run) -> None:
    settings = deploy_settings(args, _checkpoint(args))
    broker = connect(args.broker or LOCAL_REDIS)
    stop = Stop()
    stop.listen()
    run(broker, settings, stop, name=args.name or worker_name(role))


def _checkpoint(args: argparse.Namespace, *, demo: bool = False) -> Path:
    if demo and not args.checkpoint:
        folder = checkpoint.demo(args.model, args.home)
        _log.warning("no checkpoint was named: serving the tiny random one at %s, which makes noise, not music", folder)
        return folder
    return checkpoint.find(args.checkpoint, args.model, args.revision)


def _serve(args: argparse.Namespace, server, sock: socket.socket, model: str, stop: Stop, threads: RoleThreads) -> None:
    stop.listen()
    host, port = sock.getsockname()[:2]
    _log.info("serving %s at http://%s:%d", model, f"[{host}]" if ":" in host else host, port)
    try:
        server.run(sockets=[sock])
    finally:
        stop.set()
    threads.join(args.grace)


def _api_server(args: argparse.Namespace, broker: Broker, settings):
    """A uvicorn server of the api, which leaves the signals to `Stop` and ends by `finish()`."""
    import uvicorn
    from api.app import create_app

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self):
            yield

        def finish(self) -> None:
            self.should_exit = True

    contract = checkpoint.family_named(settings.family).contract(settings.checkpoint)
    app = create_app(broker, {settings.model: contract}, _api_settings(args))
    level = "debug" if args.log_level == "debug" else "warning"
    config = uvicorn.Config(
        app, log_config=None, log_level=level, access_log=False, lifespan="on",
        timeout_graceful_shutdown=max(1, int(args.grace)),
    )  # fmt: skip
    return Server(config)


def _api_settings(args: argparse.Namespace):
    from api.settings import ApiSettings
    from producer.submit import Limits

    return ApiSettings(
        api_keys=tuple(key.strip() for key in (args.api_keys or "").split(",") if key.strip()),
        limits=Limits(max_jobs=args.max_jobs, max_bytes=args.max_bytes, ttl_s=args.ttl),
        deadline_s=args.deadline,
    )
