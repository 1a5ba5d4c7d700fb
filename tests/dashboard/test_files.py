"""The files of the dashboard: small, safe, in the package, and sent as they should be."""

from __future__ import annotations

import gzip
import re
import zipfile
from importlib import resources
from typing import TYPE_CHECKING, Final

import pytest
from hatchling.builders.wheel import WheelBuilder

from headgate import dashboard
from headgate.service.http.dashboard import POLICY
from tests.service.inside import Inside, inside
from tests.unit.test_readme import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER: Final = resources.files(dashboard)
FILES: Final = {
    "index.html": FOLDER.joinpath("index.html").read_bytes(),
    **{one.name: one.read_bytes() for one in FOLDER.joinpath("assets").iterdir()},
}
MODULES: Final = sorted(name for name in FILES if name.endswith(".js"))
FORBIDDEN: Final = (
    *(r"\b(inner|outer)HTML\b", r"insertAdjacentHTML", r"document\.write", r"\beval\b"),
    *(r"new Function", r"\bimport\(", r"createContextualFragment", r"DOMParser", r"srcdoc"),
)
LEFT_OPEN: Final = "https?://(?!www.w3.org/2000/svg)"
"""Another host; the name of the SVG namespace is none."""


def packed(names: list[str]) -> int:
    return sum(len(gzip.compress(FILES[name], mtime=0)) for name in names)


def test_the_page_is_small_enough_to_load_at_once() -> None:
    """As sent, so packed; the sizes of the sources are bounded too, since people read those."""
    assert packed(MODULES) <= 35_500
    assert sum(len(FILES[name]) for name in MODULES) <= 87_000
    assert len(FILES["chart.js"]) <= 11_000
    assert len(FILES["style.css"]) <= 30_000
    assert len(FILES["index.html"]) <= 12_000


@pytest.mark.parametrize("name", MODULES)
def test_modules_create_no_markup_from_text_and_contact_no_other_host(name: str) -> None:
    source = FILES[name].decode()
    assert [one for one in FORBIDDEN if re.search(one, source)] == []
    assert re.findall(LEFT_OPEN, source) == []
    assert set(re.findall(r'^import .* from "([^"]+)"', source, re.MULTILINE)) <= {
        f"./{other}" for other in MODULES
    }


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    html = FILES["index.html"].decode()
    assert re.findall(r"\sstyle=|\son\w+=|<style|javascript:", html) == []
    assert re.findall(r"<script(?! type=\"module\" src=\"/assets/main.js\"></script>)", html) == []
    assert re.findall(LEFT_OPEN, html + FILES["style.css"].decode()) == []


def test_files_are_sent_with_a_strict_policy_and_can_be_cached_forever() -> None:
    async def story(service: Inside) -> None:
        page = await service.ask("GET", "/")
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["cache-control"] == "no-cache"
        assert page.headers["x-content-type-options"] == "nosniff"
        loaded = re.findall(r'"(/assets/[0-9a-f]{16}/(?:main.js|style.css))"', page.text)
        for address in loaded:
            answer = await service.ask("GET", address)
            assert answer.status_code == 200
            assert answer.headers["content-encoding"] == "gzip"
            assert "immutable" in answer.headers["cache-control"]
            assert answer.content == FILES[address.rpartition("/")[2]]
        style, script = loaded
        plain = await service.ask("GET", script, accept_encoding="identity")
        assert "content-encoding" not in plain.headers
        assert plain.headers["content-type"].startswith("text/javascript")
        assert plain.content == FILES["main.js"]
        assert (await service.ask("GET", style.replace("s/", "s/0"))).status_code == 404

    inside(story)


def test_without_the_dashboard_the_front_page_describes_the_service() -> None:
    async def story(service: Inside) -> None:
        front, about = [await service.ask("GET", path) for path in ("/", "/about")]
        assert "What it promises" in front.text
        assert front.text == about.text

    inside(story, dashboard=False)


@pytest.mark.slow
def test_the_wheel_contains_every_dashboard_file(tmp_path: Path) -> None:
    """A wheel is built."""
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    names = set(zipfile.ZipFile(built).namelist())
    assert {f"headgate/dashboard/assets/{name}" for name in FILES if name != "index.html"} < names
    assert "headgate/dashboard/index.html" in names
