"""What an application leaves behind, and how it is removed, so that the application begins anew."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from logflume.log import Admin, ErrorCode, GroupMemberDescription, InvalidInput, KafkaError, Log, LogflumeError, UnknownName

from ..seams import Plan, changelog_topic


def internal_topics(compiled: Plan) -> frozenset[str]:
    """Return the topics that an application made for itself alone: changelogs and repartition topics."""
    sources = {(sub.name, store) for sub in compiled.subtopologies for store in sub.table_sources}
    changelogs = {
        changelog_topic(compiled.application, spec.name)
        for sub in compiled.subtopologies
        for spec in sub.program.stores
        if (sub.name, spec.name) not in sources
    }
    repartitions = {out.topic for sub in compiled.subtopologies for out in sub.outputs.values() if out.is_repartition}
    return frozenset(changelogs | repartitions)


def forget_application(log: Log, state_dir: Path, application: str, topics: Iterable[str]) -> None:
    """Remove what an application that no longer runs left: internal topics, consumer group, local state.

    Raises:
        LogflumeError: something could not be removed; everything else is.
    """
    admin = log.admin()
    shutil.rmtree(state_dir / application, ignore_errors=True)
    failure: LogflumeError | None = None
    for remove in (*(partial(admin.delete_topic, topic) for topic in topics), partial(admin.delete_group, application)):
        try:
            remove()
        except UnknownName:
            pass
        except LogflumeError as error:
            is_gone = isinstance(error, KafkaError) and error.error is ErrorCode.GROUP_ID_NOT_FOUND
            failure = failure if is_gone else error
    if failure is not None:
        raise failure


def members_of(admin: Admin, application: str) -> Sequence[GroupMemberDescription]:
    """Return the members of an application's group."""
    return admin.describe_group(application).members if application in admin.list_groups() else ()


def reset_application(log: Log, plan: Plan, state_dir: Path) -> list[str]:
    """Let an application begin anew: remove its internal topics, its group's offsets and its local state; return the topics.

    What it has written to other topics stays.

    Raises:
        InvalidInput: an instance of it runs.
        LogflumeError: something of it could not be removed.
    """
    admin = log.admin()
    if members := members_of(admin, plan.application):
        raise InvalidInput(f"{plan.application!r} runs: {len(members)} member(s) are in its group; stop it first")
    topics = sorted(internal_topics(plan) & set(admin.list_topics(include_internal=True)))
    forget_application(log, state_dir, plan.application, topics)
    return topics
