"""One table of settings: flags, environment, defaults, help and documentation agree."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from api.settings import WebhookSettings
from compose import trouble
from compose.api_server import _api_settings
from compose.cli import COMMANDS, main, parser
from compose.settings import SETTINGS, BadSetting, of, page, resolve
from producer.archive.settings import FORMATS
from producer.archive.sound import ENCODERS

ROOT = Path(__file__).parents[2]


def settings_of(command, *flags, **environ):
    given = parser().parse_args([command, *flags])
    return resolve(command, given, environ)


def test_a_flag_wins_over_the_environment_and_that_over_the_default():
    assert settings_of("api").port == 8000
    assert settings_of("api", SONGLINE_PORT="9000").port == 9000
    assert settings_of("api", "--port", "9001", SONGLINE_PORT="9000").port == 9001
    assert settings_of("submit", "--no-detach", SONGLINE_DETACH="yes").detach is False
    assert settings_of("submit", SONGLINE_DETACH="yes").detach is True


def test_an_empty_variable_is_no_setting():
    assert settings_of("api", SONGLINE_PORT="").port == 8000


def test_api_keys():
    assert settings_of("api", SONGLINE_API_KEYS="a, ann:b,").api_keys == ["a", "ann:b"]
    assert settings_of("api").api_keys is None
    assert settings_of("api", SONGLINE_API_KEYS="").api_keys is None  # as Compose passes it where there is none


def test_reference_hosts():
    hosts = settings_of("api", SONGLINE_REFERENCE_HOSTS="media.example.com, localhost:9000,").reference_hosts
    assert hosts == ["media.example.com", "localhost:9000"]
    assert not settings_of("api").reference_hosts
    assert not settings_of("api", SONGLINE_REFERENCE_HOSTS="").reference_hosts


def test_webhooks():
    settings = settings_of("up", SONGLINE_WEBHOOK_HOSTS="example.com", SONGLINE_WEBHOOK_SECRET="whsec_czNjcmV0, old")
    assert (settings.webhook_hosts, settings.webhook_secret) == (["example.com"], ["whsec_czNjcmV0", "old"])
    assert settings_of("up", SONGLINE_WEBHOOK_SECRET="").webhook_secret is None
    assert _api_settings(settings).webhooks == WebhookSettings(
        hosts=("example.com",), secrets=("whsec_czNjcmV0", "old")
    )


def test_an_archive():
    settings = settings_of("archive", "--once", SONGLINE_ARCHIVE="s3://songs", SONGLINE_ARCHIVE_FORMAT="FLAC")
    assert (settings.archive, settings.archive_format, settings.once) == ("s3://songs", "flac", True)
    assert settings_of("up").archive is None and settings_of("up", SONGLINE_ARCHIVE="").archive_format == "wav"
    assert ENCODERS.keys() == set(FORMATS), "each can be written"


def test_what_an_archive_is_kept_as_is_known_without_the_libraries_that_write_it():
    check = (
        "import sys; from compose.cli import parser; parser().parse_args(['archive', '--archive-format', 'flac']); "
        "assert not {'numpy', 'soundfile', 'fsspec'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize(
    ("variable", "command", "text"),
    [("SONGLINE_API_KEY", "jobs", "s3cret\n"), ("SONGLINE_WEBHOOK_SECRET", "api", "whsec_s3cret")],
)
def test_a_key_is_not_shown_in_an_error(variable, command, text):
    with pytest.raises(BadSetting) as refused:
        settings_of(command, **{variable: text})
    assert "s3cret" not in str(refused.value)


def test_lists():
    assert settings_of("bench", "--concurrency", "1,4, 16").concurrency == [1, 4, 16]
    assert settings_of("bench", SONGLINE_RATE="0.5,2").rate == [0.5, 2.0]


@pytest.mark.parametrize(
    ("command", "variable", "text", "allowed"),
    [
        ("api", "SONGLINE_PORT", "70000", "a port"),
        ("api", "SONGLINE_PORT", "tcp://10.0.0.1:80", "a port"),
        ("api", "SONGLINE_TTL", "nan", "over 0"),
        ("talker", "SONGLINE_THREADS", "0", "from 1 on"),
        ("submit", "SONGLINE_DETACH", "perhaps", "true, false"),
        ("up", "SONGLINE_LOG_LEVEL", "loud", "debug, info"),
        ("bench", "SONGLINE_CONCURRENCY", "1,x", "from 1 on"),
        ("api", "SONGLINE_API_KEYS", " , ", "owner:key"),
        ("api", "SONGLINE_REFERENCE_HOSTS", "https://example.com", "without a scheme"),
        ("api", "SONGLINE_WEBHOOK_HOSTS", "example.com/path", "without a scheme"),
        ("api", "SONGLINE_WEBHOOK_SECRET", "whsec_?", "base64"),
        ("api", "SONGLINE_WEBHOOK_SECRET", "whsec_", "empty"),
        ("api", "SONGLINE_WEBHOOK_SECRET", ",", "empty"),
        ("archive", "SONGLINE_ARCHIVE_FORMAT", "mp3", "flac"),
        ("jobs", "SONGLINE_URL", "http://[", "http://127"),
        ("jobs", "SONGLINE_URL", "http://a..b", "http://127"),
        ("jobs", "SONGLINE_URL", "http://a:99999", "http://127"),
        ("jobs", "SONGLINE_URL", "localhost:8000", "http://127"),
        ("jobs", "SONGLINE_API_KEY", "\u0142", "ASCII"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(command, variable, text, allowed, capsys):
    with pytest.raises(BadSetting, match=f"{variable}.*{allowed}"):
        settings_of(command, **{variable: text})
    setting = next(setting for setting in SETTINGS if setting.variable == variable)
    if not setting.switch:
        with pytest.raises(SystemExit):
            settings_of(command, setting.flag, text)
        assert allowed in capsys.readouterr().err


def test_a_bad_variable_ends_the_command_as_wrong_usage(monkeypatch, capsys):
    monkeypatch.setenv("SONGLINE_PORT", "x")
    assert main(["up"]) == 2
    assert "SONGLINE_PORT" in capsys.readouterr().err


def test_names_are_unique_and_every_command_is_known():
    names = [setting.name for setting in SETTINGS]
    assert len(names) == len(set(names))
    known = {command.name for command in COMMANDS}
    assert {command for setting in SETTINGS for command in setting.commands} <= known


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_names_every_flag_and_variable(command, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    text = "".join(capsys.readouterr().out.split())
    for setting in of(command):
        assert setting.flag in text
        assert setting.variable in text


@pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_help_has_examples_that_can_be_typed(command, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args([command.name, "--help"])
    told = capsys.readouterr().out
    assert command.examples
    for example in command.examples:
        assert f"\n  {example}\n" in told
        typed = re.split(r" [|<] ", example)[0]
        program, *argv = shlex.split(typed)
        given = parser().parse_args(argv)
        assert (program, given.command) == ("songline", command.name)
        resolve(command.name, given, {})


def test_help_tells_every_exit_code(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["say", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    codes = {value for name, value in vars(trouble).items() if name.isupper()}
    assert len(codes) == 7
    for code in codes:
        assert re.search(rf"[ ,]{code} [a-z]", told), code


def test_a_command_may_have_a_default_of_its_own():
    assert settings_of("say").model == settings_of("up").model == settings_of("demo").model == "qwen3_tts"
    assert settings_of("sing").model == settings_of("submit").model == "minimax_music3"
    assert settings_of("say", SONGLINE_MODEL="other").model == "other"


def test_a_flag_may_be_written_in_two_ways_or_otherwise_than_it_is_named():
    assert settings_of("say", "-o", "f.wav").out == settings_of("say", "--out", "f.wav").out == Path("f.wav")
    assert settings_of("jobs", "--json").as_json is True
    assert settings_of("bench", "--json", "f").json == Path("f")


def test_the_documentation_is_made_from_the_table():
    assert (ROOT / "docs" / "settings.md").read_text() == page(), "run `make docs`"


def test_parsers_hold_no_defaults_of_their_own():
    given = parser().parse_args(["bench"])
    assert isinstance(given, argparse.Namespace)
    assert {name for name, value in vars(given).items() if value is not None} == {"command"}
