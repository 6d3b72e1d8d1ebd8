"""A difference between two schemas that a rule objects to, and how it is told.

`place` is a path into the schema. A description has two places for "new" and "old": which is which depends on whether the new
schema reads the old one's data (backward) or the old one the new one's (forward).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One objection: the rule's name, the place, a description with two `{}`, and more in the rule's own words."""

    rule: str
    place: str
    description: str
    detail: str | None = None

    def told(self, reader: str, writer: str) -> str:
        """Return the message that clients of the registry see.

        >>> Difference("TYPE_MISMATCH", "/x", "{} against {}", "int").told("new", "old")
        "{errorType:'TYPE_MISMATCH', description:'new against old', additionalInfo:'int'}"
        """
        description = self.description.replace("{}", reader, 1).replace("{}", writer, 1)
        if self.detail is None:
            return f'{{errorType:"{self.rule}", description:"{description}"}}'
        return f"{{errorType:'{self.rule}', description:'{description}', additionalInfo:'{self.detail}'}}"
