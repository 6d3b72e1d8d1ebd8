"""The same queries over all rows at once, in plain Python: what the topologies are checked against.

A stream's result is a list of rows, in any order; a table's is a dict: the key's fields as a tuple -> the row. A join of bids
with auctions sees the auction as it is when the bid comes; auctions never change here, and come before their bids.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from datetime import UTC, datetime
from typing import Any

from .events import Bid, Events
from .queries import DAY_MS, RATE

Rows = list[dict[str, Any]]
Table = dict[tuple[Any, ...], Any]


def by(rows: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _row(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def q0(events: Events) -> Rows:
    return [_row(bid) for bid in events.bids]


def q1(events: Events) -> Rows:
    return [{"auction": b.auction, "bidder": b.bidder, "price": b.price * RATE, "at": b.at} for b in events.bids]


def q2(events: Events) -> Rows:
    return [{"auction": b.auction, "price": b.price} for b in events.bids if b.auction % 123 == 0]


def q3(events: Events) -> Table:
    near = {p.id: p for p in events.persons if p.state in ("OR", "ID", "CA")}
    return {
        (a.id,): {"auction": a.id, "name": near[a.seller].name, "city": near[a.seller].city, "state": near[a.seller].state}
        for a in events.auctions
        if a.category == 10 and a.seller in near
    }


def q9(events: Events) -> Table:
    found: Table = {}
    for bid in events.bids:
        auction = events.auctions[bid.auction]
        if auction.at <= bid.at <= auction.expires:
            price = max(bid.price, found.get((bid.auction,), {"price": 0})["price"])
            found[bid.auction,] = {"price": price, "category": auction.category}
    return found


def q4(events: Events) -> Table:
    prices = by(q9(events).values(), lambda row: row["category"])
    return {(key,): {"price": sum(row["price"] for row in rows) / len(rows)} for key, rows in prices.items()}


def q5(events: Events) -> Table:
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for bid in events.bids:
        for start in range(bid.at - bid.at % 2000, bid.at - 10_000, -2000):
            counts[start, bid.auction] += 1
    windows = by(counts.items(), lambda item: item[0][0])
    return {(start,): {"most": max(count for _, count in items)} for start, items in windows.items()}


def q6(events: Events) -> Table:
    """The mean of the last ten auctions that closed, by seller."""
    sales = by(
        (
            (auction.seller, auction.expires, row["price"])
            for (number,), row in q9(events).items()
            for auction in [events.auctions[number]]
        ),
        lambda sale: sale[0],
    )
    found: Table = {}
    for seller, rows in sales.items():
        last = sorted(((closed, price) for _, closed, price in rows), reverse=True)[:10]
        found[seller,] = {"price": sum(price for _, price in last) / len(last)}
    return found


def q7(events: Events) -> Table:
    windows = by(events.bids, lambda bid: bid.at - bid.at % 10_000)
    return {("all", start, start + 10_000): {"price": max(b.price for b in rows)} for start, rows in windows.items()}


def q8(events: Events) -> Rows:
    came = {person.id: person for person in events.persons}
    return [
        {"person": a.seller, "name": came[a.seller].name, "auction": a.id}
        for a in events.auctions
        if 0 <= a.at - came[a.seller].at <= 10_000
    ]


def q10(events: Events) -> Rows:
    rows = [(b, datetime.fromtimestamp(b.at / 1000, UTC)) for b in events.bids]
    return [
        {"auction": b.auction, "bidder": b.bidder, "price": b.price, "day": f"{at:%Y-%m-%d}", "minute": f"{at:%H:%M}"}
        for b, at in rows
    ]


def q11(events: Events) -> Table:
    found: Table = {}
    for bidder, rows in by(events.bids, lambda bid: bid.bidder).items():
        times = sorted(bid.at for bid in rows)
        start, last, count = times[0], times[0], 0
        for at in [*times, times[-1] + 20_000]:
            if at - last > 10_000:
                found[bidder, start, last] = {"count": count}
                start, count = at, 0
            last, count = at, count + 1
    return found


def q12(events: Events) -> Table:
    windows = by(events.bids, lambda bid: (bid.bidder, bid.at - bid.at % 10_000))
    return {(bidder, start, start + 10_000): {"n": len(rows)} for (bidder, start), rows in windows.items()}


def q13(events: Events) -> Rows:
    return [{"auction": b.auction, "price": b.price, "item": events.auctions[b.auction].item} for b in events.bids]


def q14(events: Events) -> Rows:
    kinds = ("day", "night", "other")
    rows = [{"auction": b.auction, "price": b.price * RATE, "kind": kinds[b.at % 3]} for b in events.bids]
    return [row for row in rows if 1000.0 < row["price"] < 50000.0]


def _distinct(rows: list[Bid]) -> dict[str, Any]:
    return {"n": len(rows), "bidders": len({bid.bidder for bid in rows})}


def q15(events: Events) -> Table:
    return {(day,): _distinct(rows) for day, rows in by(events.bids, lambda b: b.at // DAY_MS).items()}


def q16(events: Events) -> Table:
    return {key: _distinct(rows) for key, rows in by(events.bids, lambda b: (b.channel, b.at // DAY_MS)).items()}


def q17(events: Events) -> Table:
    found: Table = {}
    for key, rows in by(events.bids, lambda b: (b.auction, b.at // DAY_MS)).items():
        prices = [bid.price for bid in rows]
        total = sum(prices)
        found[key] = {"n": len(rows), "low": min(prices), "high": max(prices), "mean": total / len(rows), "total": total}
    return found


def q18(events: Events) -> Table:
    return {(bid.bidder, bid.auction): _row(bid) for bid in events.bids}


def q19(events: Events) -> Table:
    groups = by(events.bids, lambda bid: bid.auction)
    return {(key,): {"prices": sorted((b.price for b in rows), reverse=True)[:10]} for key, rows in groups.items()}


def q20(events: Events) -> Rows:
    found = []
    for bid in events.bids:
        auction = events.auctions[bid.auction]
        if auction.category == 10:
            found.append({"auction": bid.auction, "price": bid.price, "item": auction.item, "category": 10})
    return found


def q21(events: Events) -> Rows:
    found = []
    for bid in events.bids:
        match = re.search("channel_id=([0-9]+)", bid.url)
        number = {"Apple": "0", "Google": "1"}.get(bid.channel) or (match.group(1) if match else None)
        if number is not None:
            found.append({"auction": bid.auction, "channel": bid.channel, "number": number})
    return found


def q22(events: Events) -> Rows:
    parts = [(bid.auction, bid.url.split("/")) for bid in events.bids]
    return [{"auction": auction, "first": words[3], "second": words[4]} for auction, words in parts]
