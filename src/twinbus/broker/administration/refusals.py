"""What the administration says when it does not do what it was asked."""

from __future__ import annotations

from twinbus.errors import AccessDenied, ConfigurationError, EntityExists, TwinbusError

__all__ = ["HttpError", "status_of"]


class HttpError(Exception):
    """An HTTP status with its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def status_of(error: HttpError | TwinbusError) -> int:
    """The status that tells the stock clients what kind of trouble this is."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, AccessDenied):
        return 401
    if isinstance(error, EntityExists):
        return 409
    if isinstance(error, ConfigurationError):
        return 400
    # The disk is full or failed: the clients' own retries may bridge that.
    return 503
