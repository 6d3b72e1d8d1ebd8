"""The Kafka protocol: message tables, the codec generated from them, frames, and the table of error codes.

    from logflume.log.protocol import messages, frames
    parts = frames.request_frame(messages.MetadataRequest(topics=None), 12, 1, "me")

Bounds: every length is checked before anything is allocated. No sockets here.
"""

from . import codec, frames, messages, tables
from .classes import MessageBase
from .errors import ErrorCode, KafkaError, detail_of, error_of

__all__ = ["ErrorCode", "KafkaError", "MessageBase", "codec", "detail_of", "error_of", "frames", "messages", "tables"]
