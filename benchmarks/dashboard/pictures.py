"""Draw the README's two pictures from a home with finished cycles (`make demo` leaves one).

python -m benchmarks.dashboard.pictures HOME        docs/dashboard.png and docs/plane.png
"""

from __future__ import annotations

import argparse
import base64
import tempfile
from pathlib import Path

from benchmarks.dashboard.chromium import Page, chromium, missing, serving
from dashboard import app
from db.errors import TrackerError
from db.session import Database
from db.writes.tracker import Tracker

DOCS = Path(__file__).parents[2] / "docs"
WIDTH, SCALE = 1280, 1.5  # page width in pixels, and device pixel ratio
PLANE = (880, 633)  # width and height of the plane, in pixels


def pictures(home: Path, out: Path) -> list[Path]:
    """Write both pictures; the same home gives the same pictures."""
    Database.open(home / "recover.db", create=False).close()
    made = [out / "dashboard.png", out / "plane.png"]
    with Tracker(home / "recover.db") as tracker:
        with serving(tracker) as base, tempfile.TemporaryDirectory() as profile:
            with chromium(base, Path(profile), flags=("--lang=en-GB",)) as page:
                made[0].write_bytes(shot(page.window(WIDTH, 900, scale=SCALE).open("/?theme=light")))
                drawn = Path(profile) / "plane.svg"
                app.picture_of(tracker, drawn)
                page.window(*PLANE, scale=SCALE).driver.get(drawn.as_uri())
                made[1].write_bytes(shot(page))
    return made


def shot(page: Page) -> bytes:
    """Return a PNG of the complete page, whatever its length."""
    width, height = page.js(
        "return [innerWidth, Math.ceil(document.getElementById('root').getBoundingClientRect().height)]"
    )
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    taken = page.do("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    return base64.b64decode(taken["data"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("home", type=Path, help="the folder with recover.db, such as .recover")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="DIR", help="default: docs")
    given = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    try:
        made = pictures(given.home, given.out)
    except TrackerError as error:
        raise SystemExit(str(error)) from error
    for path in made:
        print(path)


if __name__ == "__main__":
    main()
