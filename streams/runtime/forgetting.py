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
    """Remove what an application that no longer runs left: consumer group, internal topics, local state.

    Raises:
        KafkaError: its group has members, so it runs: nothing is removed (NON_EMPTY_GROUP).
        LogflumeError: something could not be removed, all of which is named; everything else is.
    """
    admin = log.admin()
    folder = state_dir / application
    failures: dict[str, Exception] = {}
    for what, remove in (
        (f"group {application}", partial(admin.delete_group, application)),  # the first: it tells whether the application runs
        *((f"topic {topic}", partial(admin.delete_topic, topic)) for topic in topics),
        (f"folder {folder}", partial(shutil.rmtree, folder)),
    ):
        try:
            remove()
        except (UnknownName, FileNotFoundError):
            pass
        except (LogflumeError, OSError) as error:
            code = error.error if isinstance(error, KafkaError) else None
            if code is ErrorCode.NON_EMPTY_GROUP:
                raise
            if code is not ErrorCode.GROUP_ID_NOT_FOUND:
                failures[what] = error
    if failures:
        listed = "; ".join(f"{what}: {error}" for what, error in failures.items())
        raise LogflumeError(f"not all that {application!r} left could be removed: {listed}")


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
        raise InvalidInput(
            f"{plan.application!r} runs: {len(members)} member{'s' * (len(members) != 1)} in its group; stop it first"
        )
    topics = sorted(internal_topics(plan) & set(admin.list_topics(include_internal=True)))
    forget_application(log, state_dir, plan.application, topics)
    return topics
