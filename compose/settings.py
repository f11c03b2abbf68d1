"""Every setting of the command, once: its flag, its environment variable, its default, and who takes it.

`songline --help` and docs/settings.md are made from this table. A flag wins over its environment variable, and that
over the default.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROLES = ("up", "api", "talker", "acoustic")
OPERATOR = ("workers", "drain", "undrain")
CLIENTS = ("say", "sing", "submit", "follow", "cancel", "show", "jobs", "verify", "bench")
HEARERS = ("say", "sing", "submit", "follow")
SENDERS = ("say", "sing", "submit")


class BadSetting(ValueError):
    """An environment variable holds what its setting cannot be; the message says what it can."""


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("one of true, false, yes, no, on, off, 1, 0")
    return words[text.lower()]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("a whole number from 1 on")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdigit():
        raise ValueError("a whole number from 0 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError("a number over 0")
    return seconds


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise ValueError("a port, 0 to 65535 (0 takes a free one)")
    return int(text)


def _url(text: str) -> str:
    import httpx  # by those who are given an address; they need it anyway

    try:
        url = httpx.URL(text)
        url.host.encode("idna")
        usable = url.scheme in ("http", "https") and url.host[:1] not in ("", "%") and (url.port or 0) <= 65535
    except (httpx.InvalidURL, UnicodeError):
        usable = False
    if not usable:
        raise ValueError("an address such as http://127.0.0.1:8000")
    return text


def _key(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise ValueError("visible ASCII characters")
    return text


def _keys(text: str) -> list[str]:
    keys = [part.strip() for part in text.split(",") if part.strip()]
    if not keys:
        raise ValueError("`key` or `owner:key`, separated by commas; leave it out to let everybody in")
    return keys


def _hosts(text: str) -> list[str]:
    from api.allowed_hosts import parsed  # by those who allow hosts

    hosts = [part.strip() for part in text.split(",") if part.strip()]
    for host in hosts:
        parsed(host)
    return hosts


def _secrets(text: str) -> list[str]:
    from api.signatures import signing_key  # by those who have webhooks

    secrets = [part.strip() for part in text.split(",") if part.strip()]
    for secret in secrets or [""]:
        signing_key(secret)
    return secrets


def _numbers(text: str) -> list[int]:
    return [_positive(part.strip()) for part in text.split(",")]


def _rates(text: str) -> list[float]:
    return [_seconds(part.strip()) for part in text.split(",")]


def _format_kept(text: str) -> str:
    from producer.archive.settings import FORMATS  # by those who archive

    if text.lower() not in FORMATS:
        raise ValueError(" or ".join(FORMATS))
    return text.lower()


def _level(text: str) -> str:
    levels = ("debug", "info", "warning", "error")
    if text.lower() not in levels:
        raise ValueError(f"one of {', '.join(levels)}")
    return text.lower()


@dataclass(frozen=True, slots=True)
class Setting:
    """`parse` makes the value of a text; its ValueError says what is allowed. Booleans are flags without a value.

    short: another way to write the flag. written: the flag, where it is not the name's. elsewhere: the default of
    commands that have another.
    """

    name: str
    commands: tuple[str, ...]
    default: Any
    help: str
    metavar: str = ""
    parse: Callable[[str], Any] = str
    secret: bool = False
    short: str = ""
    written: str = ""
    elsewhere: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        return self.written or "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> list[str]:
        return [*([self.short] if self.short else []), self.flag]

    def default_of(self, command: str) -> Any:
        return self.elsewhere.get(command, self.default)

    @property
    def variable(self) -> str:
        return "SONGLINE_" + self.name.upper()

    @property
    def switch(self) -> bool:
        return self.parse is _boolean

    def quoted(self, text: str) -> str:
        """What was given, as an error message may show it."""
        return "what was given" if self.secret else repr(text)


SETTINGS = (
    Setting(
        "broker",
        (*ROLES, *OPERATOR, "archive", "health", "doctor"),
        None,
        "Redis by URL: redis://, rediss://, unix://, or redis+sentinel://HOST:PORT,…/SERVICE/DB. `up` without one runs "
        "a broker inside its own process",
        "URL",
    ),
    Setting(
        "model",
        (*ROLES, *SENDERS, "bench", "demo", "doctor"),
        "qwen3_tts",
        "the model: a deploy file's name for servers, the name that requests use for clients",
        "NAME",
        elsewhere={"sing": "minimax_music3", "submit": "minimax_music3"},
    ),
    Setting(
        "checkpoint",
        (*ROLES, "doctor"),
        None,
        "checkpoint folder, or a Hugging Face repository's id. Where none is given, the one that comes with the model "
        "is served: qwen3_tts has one. For a model that has none `up` makes a tiny random one",
        "DIR",
    ),
    Setting("revision", (*ROLES, "doctor"), None, "branch, tag or commit of a checkpoint that is a repository", "REV"),
    Setting(
        "config",
        (*ROLES, "doctor"),
        None,
        "deploy file laid over the model's own; names its `base_config`. Where none is given, the checkpoint that "
        "comes with qwen3_tts is served by qwen3_tts_small",
        "FILE",
        Path,
    ),
    Setting(
        "platform",
        (*ROLES, "doctor"),
        None,
        "cpu or cuda: whose values of the deploy file count. Where none is given, cuda if torch sees a GPU; cpu for "
        "`api`, and where no checkpoint is named",
        "NAME",
    ),
    Setting(
        "threads",
        ("up", "talker", "acoustic", "doctor"),
        None,
        "torch threads of a stage; the deploy file's where none is given. Other counts give other bytes",
        "N",
        _positive,
    ),
    Setting(
        "name",
        ("talker", "acoustic", "archive", "health"),
        None,
        "the worker's or archiver's name, unique among all; made of role, host and process id where none is given",
        "NAME",
    ),
    Setting("role", ("health",), "api", "whose health: api, talker, acoustic or archive", "ROLE"),
    Setting("host", ("up", "api", "doctor"), "127.0.0.1", "address to listen at; 0.0.0.0 for all", "ADDRESS"),
    Setting("port", ("up", "api", "health", "doctor"), 8000, "port to listen at; 0 takes a free one", "PORT", _port),
    Setting(
        "api_keys",
        ("up", "api"),
        None,
        "who may use the api, as `key` or `owner:key`, separated by commas; open to all where none is given",
        "KEYS",
        _keys,
        secret=True,
    ),
    Setting(
        "max_jobs",
        ("up", "api"),
        1024,
        "jobs that may be live at once; over it, submitting answers 429",
        "N",
        _positive,
    ),
    Setting(
        "max_bytes",
        ("up", "api"),
        8 << 30,
        "bytes that all jobs may hold in the broker: live ones their worst case, ended ones their sound",
        "BYTES",
        _positive,
    ),
    Setting("ttl", ("up", "api"), 3600.0, "how long a job stays readable after its end, in seconds", "S", _seconds),
    Setting(
        "deadline",
        ("up", "api"),
        1800.0,
        "how long a job may take where its request says nothing, in seconds",
        "S",
        _seconds,
    ),
    Setting(
        "reference_hosts",
        ("up", "api"),
        None,
        "hosts that recordings to clone may be fetched from, where `ref_audio` is an https URL: `host` or `host:port`, "
        "separated by commas; a private address must be listed beside its name. Nothing is fetched where none is given",
        "HOSTS",
        _hosts,
    ),
    Setting(
        "webhook_hosts",
        ("up", "api"),
        None,
        "hosts that may be told of a job's end, where a request names a `webhook`: as `--reference-hosts` has them. "
        "Nobody is told where none is given",
        "HOSTS",
        _hosts,
    ),
    Setting(
        "webhook_secret",
        ("up", "api"),
        None,
        "signs what webhooks are sent: `whsec_` and base64, or any other text as it is; several, separated by commas, "
        "sign each, so that one can take another's place",
        "SECRET",
        _secrets,
        secret=True,
    ),
    Setting(
        "grace",
        ("up", "api"),
        25.0,
        "how long a stopping process waits for what it does, in seconds",
        "S",
        _seconds,
    ),
    Setting(
        "archive",
        ("archive", "up"),
        None,
        "where finished jobs' sound and facts are kept: a folder, or a store's URL that fsspec knows, such as "
        "s3://bucket/prefix (`pip install 'songline[s3]'`). `up` keeps them where one is given",
        "URL",
    ),
    Setting(
        "archive_format",
        ("archive", "up"),
        "wav",
        "what sound is kept as: wav, or flac, which is smaller and the same samples",
        "NAME",
        _format_kept,
    ),
    Setting(
        "once",
        ("archive",),
        False,
        "archive every finished job that is still there, whoever has archived it before, and end",
        parse=_boolean,
    ),
    Setting("log_level", (*ROLES, "archive"), "info", "debug, info, warning or error", "LEVEL", _level),
    Setting(
        "home",
        ("up", "demo", "bench", "doctor"),
        Path("~/.cache/songline"),
        "where `up` keeps the checkpoint that it makes",
        "DIR",
        Path,
    ),
    Setting("url", CLIENTS, "http://127.0.0.1:8000", "the api's address", "URL", _url),
    Setting("api_key", CLIENTS, None, "the key sent to the api, where it asks for one", "KEY", _key, secret=True),
    Setting(
        "lyrics", ("sing", "submit", "bench", "demo"), None, "file of the song's lyrics, - for standard input", "FILE"
    ),
    Setting("caption", ("sing", "submit", "bench", "demo"), None, "what the song is to sound like", "TEXT"),
    Setting(
        "seed",
        (*SENDERS, "bench", "demo", "make-checkpoint"),
        None,
        "the random seed: the same one gives the same bytes. `bench`, `demo` and `make-checkpoint` take 0 where "
        "none is given, else the server draws one",
        "N",
        _natural,
    ),
    Setting(
        "frames",
        (*SENDERS, "bench", "demo"),
        None,
        "the most frames that the sound may have: 25 a second of a song, 12.5 of speech",
        "N",
        _positive,
    ),
    Setting(
        "out",
        (*HEARERS, "demo"),
        None,
        "file to write as the sound comes, - for standard output. Without it `say` and `sing` play, or where there is "
        "no player write JOB.wav; `demo` writes speech.wav, or song.wav",
        "FILE",
        Path,
        short="-o",
    ),
    Setting("format", HEARERS, "wav", "wav, or pcm: raw interleaved 16-bit little-endian samples", "NAME"),
    Setting("play", HEARERS, None, "play the sound as it comes: ffplay, aplay, paplay or afplay", parse=_boolean),
    Setting("voice", ("say",), None, "whose voice, for models that have voices or clone yours", "NAME"),
    Setting("instructions", ("say",), None, "how it is to be said, for models that take it", "TEXT"),
    Setting("language", ("say",), None, "the text's language, for models that ask", "NAME"),
    Setting("detach", ("submit",), False, "print the job's id and leave; the job goes on", parse=_boolean),
    Setting("status", ("jobs",), None, "list only jobs of this status", "STATUS"),
    Setting("limit", ("jobs",), 20, "the most jobs to list", "N", _positive),
    Setting("concurrency", ("bench",), [1, 4], "closed loop: listeners at a time, a level each", "N,N…", _numbers),
    Setting("rate", ("bench",), None, "open loop instead: requests a second, a level each", "R,R…", _rates),
    Setting("requests", ("bench",), 8, "requests of a level", "N", _positive),
    Setting("warm_up", ("bench",), 1, "requests before the first level that are not counted", "N", _natural),
    Setting("via", ("bench",), "speech", "speech: POST /v1/audio/speech; jobs: POST /v1/jobs and its stream", "WAY"),
    Setting("timeout", ("bench",), 600.0, "seconds after which a request counts as failed", "S", _seconds),
    Setting("json", ("bench",), None, "write the report to this file", "FILE", Path),
    Setting(
        "as_json",
        (*HEARERS, "cancel", "show", "jobs", "verify", "models", "doctor"),
        False,
        "print the result as JSON",
        parse=_boolean,
        written="--json",
    ),
    Setting("compare", ("bench",), None, "an earlier report, to be shown beside this one", "FILE", Path),
    Setting("serve", ("bench",), False, "run a server of its own for the time of the bench", parse=_boolean),
    Setting(
        "size",
        ("make-checkpoint",),
        "tiny",
        "tiny runs on any machine. Music also: true; speech: 0.6b, 1.7b, and -design or -base after it; tiny-8",
        "SIZE",
    ),
)


_PREFACE = (
    "A flag wins over its environment variable, and that over the default. How a model is served (rows, budgets,",
    "leases) is not here but in its deploy file, `workers/deploy/<model>.yaml`; `--config` lays a file of your own",
    "over it.",
    "",
    "This page is made by `make docs`.",
)


def of(command: str) -> list[Setting]:
    return [setting for setting in SETTINGS if command in setting.commands]


def add_flags(parser: argparse.ArgumentParser, command: str) -> None:
    """Give a command's parser its flags. They have no defaults here, so that `resolve` sees which were given."""
    for setting in of(command):
        default = setting.default_of(command)
        text = f"{setting.help} [{setting.variable}{'' if default is None else f'; {shown(default)}'}]"
        text = text.replace("%", "%%")
        if setting.switch:
            parser.add_argument(*setting.flags, dest=setting.name, action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(
                *setting.flags, dest=setting.name, type=_argument(setting), metavar=setting.metavar, help=text
            )


def resolve(command: str, given: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """The command's settings: flags, else environment variables, else defaults. Raises BadSetting."""
    resolved = argparse.Namespace(**vars(given))
    for setting in of(command):
        if getattr(given, setting.name) is None:
            setattr(resolved, setting.name, _from_environment(setting, command, environ))
    return resolved


def _from_environment(setting: Setting, command: str, environ: Mapping[str, str]) -> Any:
    text = environ.get(setting.variable, "")
    if not text:
        return setting.default_of(command)
    try:
        return setting.parse(text)
    except ValueError as error:
        raise BadSetting(f"{setting.variable}: {setting.quoted(text)} cannot be used: {error}") from error


def _argument(setting: Setting) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{setting.quoted(text)} cannot be used: {error}") from error

    return parse


def shown(value: Any) -> str:
    """A default as people write it on the command line."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def page() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        *_PREFACE,
        "",
        "| flag | environment | default | commands | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for setting in SETTINGS:
        default = "" if setting.default is None else f"`{shown(setting.default)}`"
        default += "".join(f"; {command}: `{shown(value)}`" for command, value in setting.elsewhere.items())
        commands = ", ".join(setting.commands)
        flag = f"{', '.join(setting.flags)} {setting.metavar}".strip()
        lines.append(f"| `{flag}` | `{setting.variable}` | {default} | {commands} | {setting.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
