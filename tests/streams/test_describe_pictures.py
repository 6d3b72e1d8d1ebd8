"""A topology as text, Mermaid and SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

import logflume as lf
from logflume import col
from logflume.streams.describe.layout import lay_out

SVG = "{http://www.w3.org/2000/svg}"


def app() -> lf.App:
    made = lf.App("shop")
    clicks, users = made.stream("clicks"), made.table("users")
    clicks.filter(col.a < 3).join(users, on=col.user).group_by(col.page).window(lf.tumbling(hours=1)).count().to("pages")
    return made


def test_text_names_topics_stores_and_changelogs() -> None:
    text = app().describe()
    assert "filter: a < 3" in text
    assert "join: inner with users" in text
    assert "repartition: writes shop-clicks-by-user-repartition" in text
    assert "changelog shop-clicks-users-by-page-1h-count-changelog" in text
    assert "tumbling 1h" in text


def test_a_split_is_one_box_and_its_branches_have_their_names_by_place() -> None:
    made = lf.App("shop")
    for branch in made.stream("clicks").split(col.a < 3, col.a < 9):
        branch.to(branch.node.name)
    text = made.describe()
    assert "clicks-split  split: a < 3, a < 9" in text
    for name, title in (("1", "branch 1"), ("2", "branch 2"), ("rest", "the rest")):
        assert f"clicks-split-{name}  branch: {title}" in text
        assert f"writes clicks-split-{name}" in text


def test_the_picture_is_well_formed_and_shows_every_topic() -> None:
    svg = app().topology().describe().svg()
    root = ElementTree.fromstring(svg)
    texts = {element.text for element in root.iter(f"{SVG}text")}
    assert {"shop", "clicks", "users", "pages", "clicks-by-user-repartition"} <= texts
    assert app()._repr_svg_() == svg


def test_what_goes_round_in_a_circle_is_drawn_from_left_to_right() -> None:
    app = lf.App("places")
    app.table("customers").join(app.table("cities"), on=col.city, name="where").to("where")
    root = ElementTree.fromstring(app.topology().describe().svg())
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert texts.count("where-subscriptions-repartition") + texts.count("where-answers-repartition") == 3
    ways = [re.findall(r"-?[\d.]+", path.attrib["d"]) for path in root.iter(f"{SVG}path") if path.get("class") == "edge"]
    assert len(ways) > 8
    assert all(float(way[0]) < float(way[-2]) for way in ways)


def test_mermaid_has_an_edge_for_every_arrow() -> None:
    mermaid = app().topology().describe().mermaid()
    assert mermaid.startswith("flowchart LR\n")
    assert mermaid.count("-.->") == 2
    assert len(re.findall(r"^  subgraph ", mermaid, re.M)) == 3
    defined = set(re.findall(r"^    (n\d+)[\[(/]", mermaid, re.M))
    used = set(re.findall(r"\b(n\d+)\b(?= -|$)", mermaid, re.M))
    assert used <= defined


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_boxes_never_overlap_and_edges_go_right(pairs: list[tuple[int, int]]) -> None:
    edges = [(str(min(a, b)), str(max(a, b))) for a, b in pairs if a != b]
    layout = lay_out({str(i): (40.0 + i, 20.0 + 3 * i) for i in range(10)}, edges)
    boxes = [item for name, item in layout.items.items() if "@" not in name]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart_x = a.x + a.width <= b.x + 1e-6 or b.x + b.width <= a.x + 1e-6
            apart_y = a.y + a.height <= b.y + 1e-6 or b.y + b.height <= a.y + 1e-6
            assert apart_x or apart_y
    for source, target in edges:
        assert layout.items[source].x < layout.items[target].x
    assert all(box.x >= 0 and box.x + box.width <= layout.width + 1e-6 for box in boxes)
