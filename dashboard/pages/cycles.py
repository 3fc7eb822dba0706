"""All cycles: did each learn, did it keep its manners, may it ship?"""

from __future__ import annotations

from dashboard.desk import Desk
from dashboard.html import Html, tag
from dashboard.query import Query
from dashboard.words import chip, empty, share, table
from db import queries

TITLE = "Cycles"
PATH = "/"


def build(desk: Desk, query: Query) -> Html:
    rows = desk.cached("cycles", lambda: queries.cycles(desk.db))
    if not rows:
        return empty("No cycle yet", "recover demo")
    cells = [[str(row["cycle"]), chip(row["status"]), share(row["recovered_fraction"])] for row in rows[::-1]]
    return tag("section", tag("h1", "Cycles"), table(["cycle", "status", "recovered"], cells), class_="card")
