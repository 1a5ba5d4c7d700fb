"""The compiled build: the modules of the hot path, turned into C by mypyc, in a wheel beside their sources.

Off unless asked for: `HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel .`, or `make wheel`. The sources are compiled as they
are, and nothing is written into them: what is made goes into a folder of its own, and from there into the wheel. An
editable install never has it, so a change of a source is always seen.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "src"
LIBRARY = "lib"


class CompiledBuild(BuildHookInterface[Any]):
    """Compiles the modules that `pyproject.toml` lists."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to the wheel, and say in its name what it is for."""
        if version == "editable":
            return
        self._made = TemporaryDirectory()
        folder = Path(self._made.name)
        for path in compiled(Path(self.root), self.config["modules"], folder):
            build_data["force_include"][str(path)] = path.relative_to(folder / LIBRARY).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Tidy up: the wheel has its own copy."""
        if version != "editable":
            self._made.cleanup()


def compiled(root: Path, modules: list[str], into: Path) -> list[Path]:
    """Compile modules such as `headgate/algorithms/base.py`, and say where the results are."""
    from mypyc.build import mypycify  # noqa: PLC0415 - only who compiles has them
    from setuptools import Distribution  # noqa: PLC0415

    options = [
        f"--config-file={root / 'pyproject.toml'}",
        "--follow-imports=silent",  # What is imported, but not compiled, is none of its business.
    ]
    extensions = mypycify(
        [*options, *(str(root / SOURCES / one) for one in modules)],
        opt_level="3",
        debug_level="0",
        group_name="headgate",
        target_dir=str(into / "c"),
    )
    build = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    build.build_lib, build.build_temp = str(into / LIBRARY), str(into / "temp")
    build.ensure_finalized()
    build.run()
    return sorted(path for path in (into / LIBRARY).rglob("*") if path.is_file())
