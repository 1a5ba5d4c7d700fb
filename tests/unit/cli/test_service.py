"""How commands find a service and their token, before they send anything."""

import pytest

from headgate.cli import main

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize("token", ["a\nb", "a b", "\u00e4", "a\x7f", " ", "\udce4"])
def test_what_cannot_be_a_token_is_told_wherever_it_comes_from(
    token: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", token)
    assert main(["status", "--url", NOWHERE]) == 1
    assert "headgate: HEADGATE_TOKEN holds no token: one is a word" in capsys.readouterr().err


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
def test_a_token_that_travels_in_the_clear_is_told_of(
    host: str,
    is_told: bool,  # noqa: FBT001 - a parameter of the test
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", "hg_x")
    assert main(["status", "--url", f"http://{host}:9"]) == 1
    assert ("the token travels in the clear" in capsys.readouterr().err) is is_told
