"""The checker must find what it is there for: histories made by hand, each with one thing wrong, and mutations of a good one."""

import copy
import random
from collections.abc import Callable

import pytest

from ._checker import RULES, check
from ._history import (
    ABORTED,
    COMMITTED,
    OK,
    UNKNOWN,
    At,
    Copy,
    EndSeen,
    History,
    OffsetCommit,
    OffsetRead,
    Polled,
    Sent,
    Transaction,
)

P0, P1 = At("plain", 0), At("plain", 1)
T0, T1 = At("txn", 0), At("txn", 1)


def good() -> History:
    """A sound history: plain records, three transactions (committed, aborted, unknown), readers, a group and a copy."""
    plain = [Sent("p", 1, n, P0, f"p:1:{n}", None, OK, n - 1) for n in range(1, 7)]
    txns: list[Sent | Transaction] = []
    committed = {P0: [(n - 1, f"p:1:{n}") for n in range(1, 7)], T0: [], T1: []}
    uncommitted = {P0: list(committed[P0]), T0: [], T1: []}
    offset = 0
    for number, outcome in enumerate((COMMITTED, ABORTED, UNKNOWN, COMMITTED), start=1):
        txns.append(Transaction("t", number, outcome, outcome != ABORTED))
        for at in (T0, T1):
            value = f"t:{number}:{at.partition}"
            txns.append(Sent("t", 1, number, at, value, number, OK, offset))
            uncommitted[at].append((offset, value))
            if outcome == COMMITTED:
                committed[at].append((offset, value))
        offset += 2
    committed[At("copy", 0)] = [(n, f"p:1:{n + 1}") for n in range(4)]
    uncommitted[At("copy", 0)] = list(committed[At("copy", 0)])
    return History(
        lists={
            "p": list(plain),
            "t": list(txns),
            "r": [Polled("r", 1, T0, o, v, True) for o, v in committed[T0]],
            "u": [Polled("u", 1, T0, o, v, False) for o, v in uncommitted[T0]],
            "q": [Polled("q", 1, P0, o, v, True) for o, v in committed[P0]],
            "g": [OffsetCommit("g", P0, 2, OK), OffsetCommit("g", P0, 4, UNKNOWN), OffsetRead("g", P0, 4)],
            "e": [EndSeen(P0, 3, False), EndSeen(P0, 6, False), EndSeen(P0, 6, True)],
        },
        copies=[Copy("copier", "plain", "copy")],
        committed=committed,
        uncommitted=uncommitted,
        group_offsets={("copier", P0): 4},
    )


def test_a_good_history_is_good() -> None:
    assert check(good()) == []


def lose_the_last(history: History) -> None:
    for records in (history.committed, history.uncommitted):
        records[P0].pop()


def lose_one_in_the_middle(history: History) -> None:
    history.committed[P0].pop(5)


def lose_a_committed_transaction(history: History) -> None:
    for at in (T0, T1):
        history.committed[at] = history.committed[at][1:]


def double_one(history: History) -> None:
    for records in (history.committed, history.uncommitted):
        records[P0].append((9, "p:1:6"))


def double_one_in_a_transaction(history: History) -> None:
    for records in (history.committed, history.uncommitted):
        records[T1].append((9, "t:4:1"))


def change_one(history: History) -> None:
    history.lists["q"][3] = Polled("q", 1, P0, 3, "p:1:6", True)


def acknowledge_another_offset(history: History) -> None:
    history.lists["p"][1] = Sent("p", 1, 2, P0, "p:1:2", None, OK, 4)


def show_what_was_aborted(history: History) -> None:
    history.lists["r"].append(Polled("r", 2, T0, 2, "t:2:0", True))


def commit_what_was_aborted(history: History) -> None:
    for at in (T0, T1):
        history.committed[at].insert(1, (2, f"t:2:{at.partition}"))


def show_what_nobody_tried_to_commit(history: History) -> None:
    history.lists["t"][6] = Transaction("t", 3, UNKNOWN, False)
    for at in (T0, T1):
        history.committed[at].insert(1, (4, f"t:3:{at.partition}"))


def tear_an_unknown_one(history: History) -> None:
    history.committed[T1].insert(1, (4, "t:3:1"))


def tear_a_committed_one(history: History) -> None:
    history.committed[T1].pop(0)


def go_back(history: History) -> None:
    history.lists["q"].insert(3, history.lists["q"][1])


def read_twice(history: History) -> None:
    history.lists["r"].append(history.lists["r"][-1])


def skip_one(history: History) -> None:
    history.lists["q"].pop(2)


def skip_one_uncommitted(history: History) -> None:
    history.lists["u"].pop(1)


def reorder_sends(history: History) -> None:
    history.lists["p"][2:4] = [
        Sent("p", 1, 4, P0, "p:1:3", None, OK, 2),
        Sent("p", 1, 3, P0, "p:1:4", None, OK, 3),
    ]


def make_one_up(history: History) -> None:
    history.uncommitted[P1] = [(0, "who?")]


def forget_a_commit(history: History) -> None:
    history.lists["g"].append(OffsetRead("g", P0, 1))


def forget_all_commits(history: History) -> None:
    history.lists["g"].append(OffsetRead("g", P0, -1))


def commit_out_of_nowhere(history: History) -> None:
    history.lists["g"].append(OffsetRead("g", P0, 5))


def move_the_end_back(history: History) -> None:
    history.lists["e"].append(EndSeen(P0, 5, False))


def move_the_stable_end_back(history: History) -> None:
    history.lists["e"].append(EndSeen(P0, 2, True))


def copy_twice(history: History) -> None:
    history.committed[At("copy", 0)].append((4, "p:1:4"))


def copy_too_little(history: History) -> None:
    history.group_offsets["copier", P0] = 5


def copy_in_another_order(history: History) -> None:
    records = history.committed[At("copy", 0)]
    records[0], records[1] = (0, records[1][1]), (1, records[0][1])


BAD: list[tuple[Callable[[History], None], str]] = [
    (lose_the_last, "lost-write"),
    (lose_one_in_the_middle, "lost-write"),
    (lose_a_committed_transaction, "lost-write"),
    (double_one, "duplicate"),
    (double_one_in_a_transaction, "duplicate"),
    (change_one, "inconsistent-offsets"),
    (acknowledge_another_offset, "inconsistent-offsets"),
    (show_what_was_aborted, "aborted-read"),
    (commit_what_was_aborted, "aborted-read"),
    (show_what_nobody_tried_to_commit, "aborted-read"),
    (tear_an_unknown_one, "torn-transaction"),
    (tear_a_committed_one, "torn-transaction"),
    (go_back, "nonmonotonic-poll"),
    (read_twice, "nonmonotonic-poll"),
    (skip_one, "poll-skip"),
    (skip_one_uncommitted, "poll-skip"),
    (reorder_sends, "nonmonotonic-send"),
    (make_one_up, "unknown-value"),
    (forget_a_commit, "offset-back"),
    (forget_all_commits, "offset-back"),
    (commit_out_of_nowhere, "offset-unknown"),
    (move_the_end_back, "end-back"),
    (move_the_stable_end_back, "end-back"),
    (copy_twice, "inexact-copy"),
    (copy_too_little, "inexact-copy"),
    (copy_in_another_order, "inexact-copy"),
]


@pytest.mark.parametrize(("spoil", "kind"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_a_bad_history_is_found_bad(spoil: Callable[[History], None], kind: str) -> None:
    history = good()
    spoil(history)
    assert kind in {anomaly.kind for anomaly in check(history)}


def test_every_rule_has_a_history_that_only_it_is_there_for() -> None:
    found = set()
    for spoil, kind in BAD:
        history = good()
        spoil(history)
        found |= {rule for rule in RULES if kind in {anomaly.kind for anomaly in rule(history)}}
    assert found == set(RULES)


def test_random_mutations_of_what_is_in_the_log_are_found() -> None:
    rng = random.Random(5)
    for _ in range(1000):
        history = copy.deepcopy(good())
        records = history.committed[rng.choice([P0, T0, T1, At("copy", 0)])]
        index = rng.randrange(len(records))
        offset, value = records[index]
        change = rng.choice(["drop", "double", "swap", "flip"])
        if change == "drop":
            records.pop(index)
        elif change == "double":
            records.append((offset + 100, value))
        elif change == "swap":
            other = rng.randrange(len(records))
            if other == index:
                continue
            records[index], records[other] = (offset, records[other][1]), (records[other][0], value)
        else:
            records[index] = (offset, value + "x")
        assert check(history), f"{change} of {value} was not found"
