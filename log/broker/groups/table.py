"""The table of groups: one namespace of group ids for groups of every protocol, and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from logflume.log.protocol.errors import ErrorCode

from .classic.group import ClassicGroup
from .config import GroupConfig
from .epochs import EpochGroup
from .refused import Refused

MAX_ID_CHARS = 1024
"""Group ids may be so long; the protocol's 32,767 would cost gigabytes."""

AnyGroup = ClassicGroup | EpochGroup[Any, Any]


class GroupTable:
    """All groups of one broker by id."""

    def __init__(self, config: GroupConfig, abandon: Callable[[ClassicGroup], object]) -> None:
        """`abandon` drops a group if nothing is left of it."""
        self._config, self._abandon = config, abandon
        self._groups: dict[str, AnyGroup] = {}
        self._announced: dict[str, ClassicGroup] = {}
        """Groups that had no member when they were made, oldest first; some may have one by now, or be gone."""

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group_id: str) -> AnyGroup | None:
        return self._groups.get(group_id)

    def all(self) -> Iterable[AnyGroup]:
        return self._groups.values()

    def ids(self) -> Iterable[str]:
        return self._groups.keys()

    def put(self, group: AnyGroup) -> None:
        """Let a group have its id; what had it before gets no more calls."""
        old = self._groups.get(group.group_id)
        self._groups[group.group_id] = group
        if old is not None and old is not group:
            old.cancel_timers()

    def drop(self, group: AnyGroup) -> None:
        """Take a group out, if it still has its id, and stop its timers."""
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
        group.cancel_timers()

    def announce(self, group: ClassicGroup) -> None:
        """Note a group that has no member yet: it goes first when there is no room."""
        if len(self._announced) > self._config.max_groups:
            self._announced = {
                name: each for name, each in self._announced.items() if self._groups.get(name) is each and not each.members
            }
        self._announced[group.group_id] = group

    def has_room(self) -> bool:
        """Whether there may be one more group; the oldest that was only announced goes for it.

        Who joins first gets a member id, and nothing is known of the group until it joins again with that.
        """
        while len(self._groups) >= self._config.max_groups and self._announced:
            group = self._announced.pop(next(iter(self._announced)))
            if self._groups.get(group.group_id) is group and not group.members:
                for deadline in group.pending.values():
                    deadline.cancel()
                group.pending.clear()
                self._abandon(group)
        return len(self._groups) < self._config.max_groups

    def check_room(self, group_id: str) -> None:
        """Raise Refused GROUP_MAX_SIZE_REACHED if there may be no new group of this id, INVALID_GROUP_ID if it is too long."""
        if group_id in self._groups:
            return
        if len(group_id) > MAX_ID_CHARS:
            text = f"A group id of {len(group_id)} characters: expected at most {MAX_ID_CHARS}."
            raise Refused(ErrorCode.INVALID_GROUP_ID, text)
        if not self.has_room():
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"There are {self._config.max_groups} groups (logflume.max.groups); delete those that are not used.",
            )

    def check_alive(self, group_id: str) -> None:
        """Raise Refused COORDINATOR_NOT_AVAILABLE while a group is being deleted: a moment later there may be a new one."""
        group = self._groups.get(group_id)
        if group is not None and group.is_dead:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Group {group_id} is being deleted.")
