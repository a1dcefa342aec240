"""How a request to an embedded engine can end other than well.

Rule: an `ApiError` is what vLLM would answer; the other two are what its client would see of an engine in
trouble.
"""

from __future__ import annotations

INVALID = "Bad Request"
"""Type of the errors of vLLM's validation of bodies; other errors have the names of classes."""


class ApiError(Exception):
    """An error answer in vLLM's shape: status, message, type and the offending parameter."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ):
        super().__init__(message)
        self.message, self.status, self.kind, self.param = message, status, kind, param

    def body(self, *, anthropic: bool = False) -> dict[str, object]:
        """vLLM 0.32: {"error": {"message", "type", "param", "code"}}.

        With `anthropic` {"type": "error", "error": {"type", "message"}}, as /v1/messages answers. What
        validation refuses, before the API is reached, has the first shape everywhere.
        """
        if anthropic and self.kind != INVALID:
            return {"type": "error", "error": {"type": self.kind, "message": self.message}}
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


class KvLoadFailed(ApiError):
    """A NIXL read failed under the policy `fail`: 500, as vLLM 0.32 answers."""

    def __init__(self) -> None:
        super().__init__("Internal server error", status=500, kind="InternalServerError")


class EngineDied(Exception):
    """The engine process ended while the request ran: the client sees a reset connection."""
