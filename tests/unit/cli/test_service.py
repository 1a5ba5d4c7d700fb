"""How commands find a service and their token, before they send anything."""

from pathlib import Path

import pytest

from headgate.cli import main
from headgate.cli._service import seconds_of
from headgate.errors import UsageError

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize("token", ["a\nb", "a b", "\u00e4", "a\x7f", " ", "\udce4"])
def test_an_invalid_token_is_reported_with_its_source(
    token: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", token)
    assert main(["status", "--url", NOWHERE]) == 1
    assert "headgate: HEADGATE_TOKEN has no valid token" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host, is_told",
    [
        ("localhost.evil.invalid", True),
        ("localhosts", True),
        ("127.evil.invalid", True),
        ("limits.invalid", True),
        ("localhost", False),
        ("LOCALHOST", False),
        ("127.0.0.1", False),
        ("127.8.7.6", False),
        ("[::1]", False),
    ],
)
def test_a_token_sent_in_the_clear_causes_a_warning(
    host: str,
    is_told: bool,  # noqa: FBT001 - a parameter of the test
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", "hg_x")
    assert main(["status", "--url", f"http://{host}:1"]) == 1
    assert ("the token is sent unencrypted" in capsys.readouterr().err) is is_told


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90s", 90),
        ("10m", 600),
        ("1h", 3_600),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("250ms", 0.25),
        ("10 minutes", 600),
        ("5 min", 300),
        ("Hour", 3_600),
        ("1 day", 86_400),
        (" 3 secs ", 3),
    ],
)
def test_a_length_of_time_is_written_as_in_rates(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "0s", "00m", "1.5h", "-1s", "5 x", "s5", "month", "١s"])
def test_an_invalid_duration_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration; write it as in rates"):
        seconds_of(text)


def test_a_file_without_a_certificate_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("nothing")
    for file, reason in ((empty, "it holds no certificate"), (tmp_path / "none", "No such file")):
        assert main(["status", "--url", "https://127.0.0.1:1", "--ca-file", str(file)]) == 1
        assert f"headgate: {file}: the certificate cannot be read: {reason}" in (
            capsys.readouterr().err
        )
