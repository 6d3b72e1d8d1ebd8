"""Streams groups in a whole broker: the internal topics are real ones with their settings, and the group outlives a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logflume.log.protocol import messages
from logflume.log.server import start_embedded

from ._embedded import Calls

MISSING_INTERNAL_TOPICS = 3
TOPIC = 2
Request = messages.StreamsGroupHeartbeatRequest


def join(call: Calls, group: str, *, replication_factor: int = 0, member_id: str = "m") -> Any:
    """Join with a topology that keeps a store of a topic `in`."""
    config = Request.KeyValue(key="cleanup.policy", value="compact")
    changelog = Request.TopicInfo(name=f"{group}-changelog", replication_factor=replication_factor, topic_configs=[config])
    subtopology = Request.Subtopology(subtopology_id="0", source_topics=["in"], state_changelog_topics=[changelog])
    request = Request(
        group_id=group,
        member_id=member_id,
        rebalance_timeout_ms=60_000,
        topology=Request.Topology(subtopologies=[subtopology]),
        process_id="p",
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    return call(request, 0)


def test_internal_topics_and_a_restart(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path)) as broker:
        call = Calls(broker)
        call.create("in", 3)
        response = join(call, "app")
        assert [(t.subtopology_id, t.partitions) for t in response.active_tasks] == [("0", [0, 1, 2])]
        asked = messages.DescribeConfigsRequest
        resource = asked.DescribeConfigsResource(
            resource_type=TOPIC, resource_name="app-changelog", configuration_keys=["cleanup.policy"]
        )
        (result,) = call(asked(resources=[resource]), 4).results
        assert [(c.name, c.value) for c in result.configs] == [("cleanup.policy", "compact")]
        metadata = call(messages.MetadataRequest(topics=None), 12).topics
        assert {t.name: len(t.partitions) for t in metadata}["app-changelog"] == 3

        refused = join(call, "other", replication_factor=3)
        assert ([s.status_code for s in refused.status], refused.active_tasks) == ([MISSING_INTERNAL_TOPICS], [])
        assert "replication factor" in refused.status[0].status_detail
    with start_embedded(str(tmp_path)) as broker:
        call = Calls(broker)
        stays = call(Request(group_id="app", member_id="m", member_epoch=1), 0)
        assert (stays.error_code, stays.member_epoch, stays.active_tasks) == (0, 1, None)
        (group,) = call(messages.StreamsGroupDescribeRequest(group_ids=["app"]), 0).groups
        assert (group.group_state, group.topology.subtopologies[0].state_changelog_topics[0].partitions) == ("Stable", 3)
