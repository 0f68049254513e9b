"""The shape of the package: import ranks, the public surface, what starting up may import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pliant

SOURCE = Path(pliant.__file__).parent
ROOT = Path(__file__).parents[1]

RANKS = {
    "terms": 0, "errors": 0, "talk": 0, "assets": 0,
    "numerics": 1, "stats": 1, "runs": 1,
    "components": 2, "models": 2, "data": 2,
    "measuring": 3,
    "tuning": 4,
    "advising": 5, "sweeping": 5, "landscapes": 5, "reporting": 5,
    "job": 6,
    "cli": 7,
}  # fmt: skip

FILES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def unit(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pliant"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("pliant.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path):
    mine = unit(path)
    for other in imported_units(path) - {mine}:
        if {mine, other} == {"terms", "errors"}:
            continue
        assert RANKS[other] < RANKS[mine], f"{path.name} (rank {RANKS[mine]}) imports {other} (rank {RANKS[other]})"


def test_every_public_name_resolves_and_is_documented():
    assert len(pliant.__all__) <= 25
    for name in pliant.__all__:
        assert (getattr(pliant, name).__doc__ or "").strip(), f"pliant.{name} has no docstring"
    assert sorted(pliant._HOMES) == sorted(set(pliant.__all__) - {"PliantError", "Preprocessing"})


def test_a_submodule_never_hides_a_public_name():
    submodules = {p.stem for p in SOURCE.glob("*.py")} | {p.name for p in SOURCE.iterdir() if p.is_dir()}
    assert not submodules & set(pliant.__all__)


def test_an_unknown_public_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'mesure'; public names: .*measure"):
        _ = pliant.mesure


@pytest.mark.parametrize("arguments", [["--help"], ["tune", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]):
    code = (
        "import sys; from pliant.cli.app import run; run(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'ray', 'pandas', 'timm', 'sklearn'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_module_postpones_annotations_or_is_named_for_nothing():
    for path in FILES:
        assert "from __future__ import annotations" not in path.read_text(), path
        assert not re.fullmatch(r"utils?|helpers?|common|misc", path.stem), path


def test_commands_in_code_blocks_of_the_readme_exist():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    named = set(re.findall(r"\bpliant ([a-z]+)\b", "\n".join(blocks)))
    assert {"tune", "measure", "anatomy"} <= named
    shown = subprocess.run([sys.executable, "-m", "pliant.cli", "--help"], capture_output=True, text=True, check=True)
    for command in named:
        assert re.search(rf"\b{command}\b", shown.stdout), f"README names `pliant {command}`, which does not exist"
