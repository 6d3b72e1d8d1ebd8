"""The broker's settings of access and quotas, under Kafka's names."""

from __future__ import annotations

from .config_spec import ConfigSpec, ConfigType, int_spec, text_spec

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

ACCESS_BROKER_SPECS = (
    ConfigSpec(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        "false",
        "Whether a resource about which no ACL says anything is open to everyone.",
        is_read_only=True,
    ),
    text_spec(
        "authorizer.class.name",
        "",
        "Who decides about access: empty for nobody (everything is allowed), StandardAuthorizer for the ACLs kept here.",
        choices=("", STANDARD_AUTHORIZER),
        fixed=True,
    ),
    int_spec("quota.window.num", 11, "Samples over which the rates of client quotas are measured.", low=1, fixed=True),
    int_spec("quota.window.size.seconds", 1, "Length of a sample of client quotas, in seconds.", low=1, fixed=True),
    int_spec(
        "controller.quota.window.num", 11, "Samples over which the rates of controller mutations are measured.", low=1, fixed=True
    ),
    int_spec(
        "controller.quota.window.size.seconds", 1, "Length of a sample of controller mutations, in seconds.", low=1, fixed=True
    ),
    text_spec("super.users", "", "Principals that may do everything, as User:name, separated by semicolons.", fixed=True),
)
