"""The check of lengths names what is too long, and nothing else."""

from __future__ import annotations

from pathlib import Path

from checks.sizes import NEAR, OF_FUNCTION, OF_MODULE, too_long

SHORT = "def short() -> None:\n" + "    ...\n" * (OF_FUNCTION - 1)
LONG = "async def long() -> None:\n" + "    ...\n" * OF_FUNCTION


def test_a_long_function_is_named(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(SHORT + LONG)
    (problem,) = too_long(module)
    assert f"long has {OF_FUNCTION + 1} lines" in problem
    assert len(list(too_long(module, NEAR))) == 2


def test_a_long_module_is_named_unless_it_is_generated(tmp_path: Path) -> None:
    (tmp_path / "generated").mkdir()
    for module in (tmp_path / "module.py", tmp_path / "generated" / "module.py"):
        module.write_text("# a line\n" * (OF_MODULE + 1))
    assert len(list(too_long(tmp_path / "module.py"))) == 1
    assert not list(too_long(tmp_path / "generated" / "module.py"))
