"""The node: what an operated service has, as its settings say."""

from __future__ import annotations

import pytest

from headgate import ConfigError
from headgate.service.node import Node
from headgate.service.settings import Settings


@pytest.mark.parametrize(
    "board, message",
    [
        ("memory://?fil=/x", "there is no option 'fil'; the options are file"),
        ("memory://?file=/x&file=/y", "the option 'file' is given twice"),
        ("memory:///x/board.json", "a memory:// URL has only options, such as memory://?file="),
    ],
)
def test_a_board_whose_url_says_something_unknown_is_refused(board: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Node(Settings(board=board))
    assert message in str(refused.value)
