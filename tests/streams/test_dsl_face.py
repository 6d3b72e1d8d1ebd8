"""What help(), completion, repr() and a notebook show of an application: what a user calls, not how it is made."""

from __future__ import annotations

import pydoc

import pytest

import logflume as lf

CLASSES = [lf.Stream, lf.Table, lf.Grouped, lf.GroupedTable, lf.Cogrouped, lf.GlobalTable]


@pytest.mark.parametrize("shown", CLASSES, ids=lambda shown: shown.__name__)
def test_help_lists_what_a_user_calls_and_nothing_else(shown: type) -> None:
    text = pydoc.plain(pydoc.render_doc(shown))
    listed = [
        line.split(" |  ")[1].split("(")[0].split(" =")[0]
        for line in text.splitlines()
        if line[:5].startswith(" |  ") and line[4:5].strip()
    ]
    assert not [name for name in listed if name.startswith("_")], listed
    names = dir(shown)
    assert not [name for name in names if name.startswith("_") or name in ("graph", "node", "then", "scope", "unpair")]
    undocumented = [name for name in names if not (getattr(shown, name).__doc__ or "")]
    assert undocumented == [], "each has a sentence of its own"


def test_what_is_printed_of_an_application_is_a_line() -> None:
    app = lf.App("shop", log="./data")
    orders, users = app.stream("orders"), app.table("users")
    for number in range(50):
        orders = orders.filter(lf.col.price > number)
    everything = [app, orders, users, orders.group_by_key(), users.group_by(lf.col.country), orders.group_by_key().count()]
    for shown in everything:
        assert len(repr(shown)) < 120, repr(shown)
    assert repr(app) == "App('shop', log='./data')"


def test_a_notebook_shows_the_picture_of_an_application_and_of_a_stream_on_its_way() -> None:
    app = lf.App("shop")
    orders, users = app.stream("orders"), app.table("users")
    big = orders.filter(lf.col.price > 100)
    counted = orders.group_by(lf.col.user).count()
    orders.to("everything")
    whole, part, table = app._repr_svg_(), big._repr_svg_(), counted._repr_svg_()
    assert all(picture.startswith("<svg") for picture in (whole, part, table))
    assert "users" in whole
    assert "everything" in whole
    assert "price &gt; 100" in part
    assert "users" not in part
    assert "everything" not in part
    assert "count" in table
    assert users.schema.key
