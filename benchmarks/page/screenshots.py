"""Draw the page at 6, 64 and 5,000 nodes, dark and light, into a folder.

python -m benchmarks.page.screenshots [FOLDER]      docs/images/page by default
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser

from benchmarks.page.browser import CHROMIUM, INSTALL, chromium, serving
from benchmarks.page.scene import Scene
from benchmarks.page.scenes import five_thousand, six, sixty_four

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "page"
THEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a scene, with this gang open, if one is named."""

    name: str
    scene: Callable[[], Scene]
    gang: str = ""
    width: int = 1440
    height: int = 810


PICTURES = (
    Picture("6-nodes", six),
    Picture("refused", six, "rlhf"),
    Picture("place", six, "ring-of-four"),
    Picture("64-nodes", sixty_four),
    Picture("5000-nodes", five_thousand, height=900),
)


def main(arguments: list[str]) -> int:
    """Draw all pictures, and return the exit status."""
    if not CHROMIUM.exists():
        print(f"{CHROMIUM} is not there: {INSTALL}", file=sys.stderr)
        return 1
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_draw(folder))
    return 0


async def _draw(folder: Path) -> None:
    async with chromium() as browser:
        for picture in PICTURES:
            scene = picture.scene()
            async with serving(scene) as (page, _):
                hash_ = f"#gang={scene.key(picture.gang)}" if picture.gang else ""
                for theme in THEMES:
                    path = folder / f"{picture.name}-{theme}.png"
                    await _picture(browser, picture, page.url + hash_, theme, path)
                    print(f"{path}: {path.stat().st_size // 1024} KiB")


async def _picture(
    browser: Browser, picture: Picture, url: str, theme: Literal["dark", "light"], path: Path
) -> None:
    tab = await browser.new_page(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=theme
    )
    tab.on("console", lambda message: print("console:", message.text, file=sys.stderr))
    tab.on("pageerror", lambda problem: print("error:", problem, file=sys.stderr))
    await tab.goto(url)
    await tab.get_by_role("status").filter(has_text="Live").wait_for()
    if picture.gang:
        await tab.get_by_role("heading", name="Timeline").wait_for()
    await tab.screenshot(path=path)
    await tab.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
