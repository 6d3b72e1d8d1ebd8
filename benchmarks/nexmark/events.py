"""The three streams, as rows; one person and three auctions for each 46 bids, as the suite makes them. Fixed by the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

START_MS = 1_700_000_000_000
STATES = ("OR", "ID", "CA", "WA", "AZ", "WY")
CHANNELS = ("Apple", "Google", "Facebook", "Baidu", "channel-1", "channel-2")


class Person(msgspec.Struct):
    id: int
    name: str
    city: str
    state: str
    at: int


class Auction(msgspec.Struct):
    id: int
    item: str
    reserve: int
    expires: int
    seller: int
    category: int
    at: int


class Bid(msgspec.Struct):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    at: int


@dataclass(frozen=True, slots=True)
class Events:
    """All rows in order of time."""

    persons: list[Person] = field(default_factory=list)
    auctions: list[Auction] = field(default_factory=list)
    bids: list[Bid] = field(default_factory=list)


def make_events(count: int, *, seed: int = 1) -> Events:
    """Return about `count` events, 10 ms apart."""
    numbers, found = random.Random(seed), Events()
    for i in range(count):
        at, kind = START_MS + i * 10, i % 50
        if kind == 0:
            number = len(found.persons)
            found.persons.append(Person(number, f"name {number}", f"city {number % 7}", numbers.choice(STATES), at))
        elif kind <= 3:
            seller, expires = numbers.randrange(len(found.persons)), at + numbers.randrange(2_000, 30_000)
            number = len(found.auctions)
            category, reserve = 10 + numbers.randrange(5), numbers.randrange(1000)
            found.auctions.append(Auction(number, f"item {number}", reserve, expires, seller, category, at))
        else:
            newest = len(found.auctions)
            auction = numbers.randrange(max(0, newest - 30), newest)
            channel = numbers.choice(CHANNELS)
            url = f"https://www.nexmark.com/a{auction}/b/item.htm?query=1" + f"&channel_id={numbers.randrange(100)}" * (i % 3)
            bidder = numbers.randrange(len(found.persons))
            found.bids.append(Bid(auction, bidder, numbers.randrange(1, 100_000), channel, url, at))
    return found
