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
