"""The queries, each a function from an application to the table or stream that goes to the topic `out`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import logflume.streams as lf
from logflume import functions
from logflume.streams import col

from .events import Auction, Bid, Person

DAY_MS = 86_400_000
RATE = 0.908


def bids(app: lf.App) -> Any:
    return app.stream("bids", Bid, key=None)


def with_day(app: lf.App) -> Any:
    return bids(app).with_columns(day=col.at // DAY_MS)


def auctions(app: lf.App) -> Any:
    return app.table("auctions", Auction, key=int)


def q0(app: lf.App) -> Any:
    """All bids."""
    return bids(app)


def q1(app: lf.App) -> Any:
    """Prices in euros."""
    return bids(app).select(col.auction, col.bidder, price=col.price * RATE, at=col.at)


def q2(app: lf.App) -> Any:
    """Bids on some auctions."""
    return bids(app).filter(col.auction % 123 == 0).select(col.auction, col.price)


def q3(app: lf.App) -> Any:
    """Who sells in some states, in one category."""
    some = auctions(app).filter(col.category == 10)
    near = app.table("persons", Person, key=int).filter(col.state.isin(["OR", "ID", "CA"]))
    joined = some.join(near, on=col.seller, prefix="p_")
    return joined.select(auction=col.id, name=col.p_name, city=col.p_city, state=col.p_state)


def winning(app: lf.App) -> Any:
    """The highest bid of each auction, while it was open."""
    joined = bids(app).join(auctions(app), on=col.auction, prefix="a_")
    valid = joined.filter((col.at >= col.a_at) & (col.at <= col.a_expires))
    return valid.group_by(col.auction).aggregate(price=lf.max(col.price), category=lf.max(col.a_category))


def q4(app: lf.App) -> Any:
    """The average winning price by category."""
    return winning(app).group_by(col.category).aggregate(price=lf.mean(col.price))


def q5(app: lf.App) -> Any:
    """The largest number of bids on one auction, by hopping window."""
    window = lf.hopping(lf.seconds(10), advance=lf.seconds(2), grace=lf.seconds(60))
    counts = bids(app).group_by(col.auction).window(window).count()
    by_start = counts.to_stream().select(start=lf.window_start, n=col["count"]).group_by(col.start)
    return by_start.aggregate(most=lf.max(col.n))  # counts only grow, so that their updates are enough


def q7(app: lf.App) -> Any:
    """The highest price by tumbling window."""
    one = bids(app).group_by(lambda bid: "all", key=str)
    return one.window(lf.tumbling(lf.seconds(10), grace=lf.seconds(60))).aggregate(price=lf.max(col.price))


def q8(app: lf.App) -> Any:
    """Who sells something within ten seconds after coming."""
    came = app.stream("persons", Person, key=int)
    sold = app.stream("auctions", Auction, key=int).select_key(col.seller)
    joined = came.join(sold, before=0, after=lf.seconds(10), grace=lf.seconds(60), prefix="a_")
    return joined.select(person=col.id, name=col.name, auction=col.a_id)


def q9(app: lf.App) -> Any:
    """The winning price of each auction."""
    return winning(app)


def q11(app: lf.App) -> Any:
    """Bids by session of a bidder."""
    return bids(app).group_by(col.bidder).window(lf.session(lf.seconds(10), grace=lf.seconds(60))).count()


def q13(app: lf.App) -> Any:
    """Bids with what a small table says."""
    return bids(app).join(auctions(app), on=col.auction, prefix="a_").select(col.auction, col.price, item=col.a_item)


def q14(app: lf.App) -> Any:
    """A computed price, filtered."""
    kind = lf.when(col.at % 3 == 0, "day").when(col.at % 3 == 1, "night").otherwise("other")
    return bids(app).select(col.auction, price=col.price * RATE, kind=kind).filter((col.price > 1000.0) & (col.price < 50000.0))


def q15(app: lf.App) -> Any:
    """Bids and distinct bidders of a day."""
    return with_day(app).group_by(col.day).aggregate(n=lf.count(), bidders=functions.count_distinct(col.bidder))


def q16(app: lf.App) -> Any:
    """The same by channel."""
    return with_day(app).group_by(col.channel, col.day).aggregate(n=lf.count(), bidders=functions.count_distinct(col.bidder))


def q17(app: lf.App) -> Any:
    """Prices of an auction in a day."""
    grouped = with_day(app).group_by(col.auction, col.day)
    return grouped.aggregate(
        n=lf.count(), low=lf.min(col.price), high=lf.max(col.price), mean=lf.mean(col.price), total=lf.sum(col.price)
    )


def q18(app: lf.App) -> Any:
    """The last bid of each bidder on each auction."""
    return bids(app).group_by(col.bidder, col.auction).reduce(lambda before, bid: bid)


def q19(app: lf.App) -> Any:
    """The ten highest prices of each auction."""
    return bids(app).group_by(col.auction).aggregate(prices=functions.topk(col.price, 10))


def q20(app: lf.App) -> Any:
    """Bids on auctions of a category, with the auction."""
    return with_category(app).filter(col.category == 10)


def with_category(app: lf.App) -> Any:
    joined = bids(app).join(auctions(app), on=col.auction, prefix="a_")
    return joined.select(col.auction, col.price, item=col.a_item, category=col.a_category)


def q21(app: lf.App) -> Any:
    """The channel's number, by its name or from the address."""
    found = functions.regexp_extract("channel_id=([0-9]+)", col.url, 1)
    number = lf.when(col.channel == "Apple", "0").when(col.channel == "Google", "1").otherwise(found)
    return bids(app).select(col.auction, col.channel, number=number).filter(col.number.is_not_null())


def q22(app: lf.App) -> Any:
    """Parts of the address."""
    parts = functions.split(col.url, "/")
    return bids(app).select(col.auction, first=parts[3], second=parts[4])


QUERIES: dict[str, Callable[[lf.App], Any]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22)
}
