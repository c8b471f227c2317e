"""RPC: the methods by version, their dispatch and replies, and the client."""

from scheduler_service import bus  # noqa: F401 - before oslo.messaging
