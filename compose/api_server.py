"""The api as a server of this process: its contracts from the model families, its signals from `Stop`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from api.app import create_app
from api.server import Server
from api.settings import ApiSettings, WebhookSettings
from broker_schemas.connection import Broker
from compose.checkpoint import family_named
from compose.trouble import NO_CHECKPOINT, USAGE, Trouble
from producer.submit import Limits
from workers.checkpoints import CheckpointError
from workers.settings import Settings


class ApiServer(Server):
    """Ends by `finish()`, from any thread or signal handler, and takes no signals of its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def finish(self) -> None:
        self.should_exit = True


def api_server(args: argparse.Namespace, broker: Broker, settings: Settings) -> ApiServer:
    """The api of one model. Raises Trouble."""
    try:
        contract = family_named(settings.family).contract(settings.checkpoint, settings.talker.max_model_len)
        app = create_app(broker, {settings.model: contract}, _api_settings(args))
    except ValueError as error:
        raise Trouble(str(error), USAGE) from error
    except CheckpointError as error:
        raise Trouble(str(error), NO_CHECKPOINT) from error
    log_level = "debug" if args.log_level == "debug" else "warning"
    grace_s = max(1, int(args.grace))
    return ApiServer(app, grace_s=grace_s, log_config=None, log_level=log_level, access_log=False)


def _api_settings(args: argparse.Namespace) -> ApiSettings:
    return ApiSettings(
        api_keys=tuple(args.api_keys or ()),
        limits=Limits(max_jobs=args.max_jobs, max_bytes=args.max_bytes, ttl_s=args.ttl),
        deadline_s=args.deadline,
        reference_hosts=tuple(args.reference_hosts or ()),
        webhooks=WebhookSettings(hosts=tuple(args.webhook_hosts or ()), secrets=tuple(args.webhook_secret or ())),
    )
