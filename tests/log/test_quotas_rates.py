"""Rates and token buckets against models that keep every event, and what a client that obeys can get."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from logflume.log.broker.quotas.rates import Rate, TokenBucket


class RateModel(RuleBasedStateMachine):
    """The rate from a list of all events, grouped into samples anew each time."""

    SAMPLES, WINDOW_MS = 4, 1000

    def __init__(self) -> None:
        super().__init__()
        self.rate = Rate(self.SAMPLES, self.WINDOW_MS)
        self.events: list[tuple[int, float]] = []
        self.now_ms = 5_000

    @rule(amount=st.integers(0, 1000))
    def record(self, amount: int) -> None:
        self.rate.record(amount, self.now_ms)
        self.events.append((self.now_ms, amount))

    @rule(amount=st.integers(1, 500))
    def take_back(self, amount: int) -> None:
        self.rate.record(-amount, self.now_ms)
        self.events.append((self.now_ms, -amount))

    @rule(ms=st.integers(1, 2500))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def counted(self) -> list[tuple[int, int, float]]:
        """(start, last event, amount) of each sample that counts now.

        A sample that has dropped out cannot come back, so that it is enough to look at the present.
        """
        samples: list[tuple[int, int, float]] = []
        for at_ms, amount in self.events:
            samples = [each for each in samples if at_ms - each[1] < self.SAMPLES * self.WINDOW_MS or each is samples[-1]]
            if samples and at_ms - samples[-1][0] < self.WINDOW_MS:
                start_ms, _, total = samples.pop()
                samples.append((start_ms, at_ms, total + amount))
            else:
                samples.append((at_ms, at_ms, amount))
        return [each for each in samples if self.now_ms - each[1] < self.SAMPLES * self.WINDOW_MS]

    def span_ms(self) -> int:
        counted = self.counted()
        elapsed_ms = self.now_ms - counted[0][0] if counted else 0
        return max(elapsed_ms + max(0, self.SAMPLES - 1 - elapsed_ms // self.WINDOW_MS) * self.WINDOW_MS, 1)

    @invariant()
    def rate_is_the_amount_over_the_span(self) -> None:
        expected = sum(amount for _, _, amount in self.counted()) * 1000 / self.span_ms()
        assert self.rate.per_second(self.now_ms) == pytest.approx(expected, abs=1e-6)

    @invariant()
    def the_wait_is_long_enough_and_not_longer(self) -> None:
        total = sum(amount for _, _, amount in self.counted())
        for limit in (1.0, 50.0, 700.0):
            wait_ms = self.rate.wait_ms(limit, self.now_ms)
            span_ms = self.span_ms()
            if total * 1000 / span_ms <= limit:
                assert wait_ms == 0
            else:
                assert total * 1000 / (span_ms + wait_ms) == pytest.approx(limit, rel=2e-3)


RateModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestRateModel = RateModel.TestCase


@given(
    limit=st.integers(10, 10_000),
    amounts=st.lists(st.integers(1, 5_000), min_size=30, max_size=120),
    gaps_ms=st.lists(st.integers(0, 200), min_size=120, max_size=120),
)
@settings(max_examples=60, deadline=None)
def test_a_client_that_waits_as_told_gets_no_more_than_its_limit(limit: int, amounts: list[int], gaps_ms: list[int]) -> None:
    rate, now_ms, used = Rate(11, 1000), 0, 0
    for amount, gap_ms in zip(amounts, gaps_ms, strict=False):
        rate.record(amount, now_ms)
        used += amount
        now_ms += rate.wait_ms(limit, now_ms) + gap_ms
    burst = limit * 10 + 2 * max(amounts)
    assert used <= limit * (now_ms / 1000) * 1.35 + burst, "the windows' edges let through a part more, never a multiple"


def test_a_burst_within_the_windows_is_not_taken_for_a_rate() -> None:
    rate = Rate(11, 1000)
    rate.record(1000, 0)
    assert rate.per_second(0) == 100
    assert rate.wait_ms(100, 0) == 0
    assert rate.wait_ms(50, 0) == 10_000


def test_what_is_older_than_the_windows_is_forgotten() -> None:
    rate = Rate(11, 1000)
    rate.record(1_000_000, 0)
    assert not rate.is_spent(10_999)
    assert rate.is_spent(11_000)
    assert rate.wait_ms(1, 11_000) == 0


@given(
    limit=st.floats(0.5, 100),
    burst_s=st.floats(0.5, 11),
    steps=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)), max_size=40),
)
def test_a_bucket_is_what_was_refilled_less_what_was_taken(limit: float, burst_s: float, steps: list[tuple[int, int]]) -> None:
    bucket, now_ms, tokens = TokenBucket(burst_s), 10_000, limit * burst_s
    for gap_ms, amount in steps:
        now_ms += gap_ms
        tokens = min(limit * burst_s, tokens + limit * gap_ms / 1000)
        wait_ms = bucket.wait_ms(limit, now_ms)
        assert wait_ms == pytest.approx(max(0.0, -tokens / limit * 1000), abs=1)
        bucket.take(amount, limit, now_ms)
        tokens -= amount
        assert bucket.is_full(limit, now_ms) is (tokens >= limit * burst_s)


def test_a_bucket_starts_full_and_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(10)
    assert bucket.wait_ms(5, 0) == 0
    bucket.take(60, 5, 0)
    assert bucket.wait_ms(5, 0) == 2000
    assert bucket.wait_ms(5, 1500) == 500
    assert bucket.wait_ms(5, 2000) == 0
