"""Deletes log files of earlier days, by their names, and nothing else.

    operations-2026-11-16.jsonl            a broker's
    operations-5f0c1a…-2026-11-16.3.jsonl  a client's, of one run

Rule 1: a file is deleted when its name is exactly that of a log file and the day in it is more
        than ``keep_days`` before today. Its modification time and content do not matter.
Rule 2: only plain files directly in the directory: no link is followed, no subdirectory is read.
Rule 3: a file that cannot be deleted stays, and this is logged once; nothing else stops.

Without ``keep_days`` nothing is deleted: a cost report and a reconciliation read these files, and
only the operator can decide for which periods they are still needed.
"""

from __future__ import annotations

import logging
import os
import re
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from twinbus.errors import ConfigurationError

__all__ = ["KEEP_DAYS_MAX", "check_keep_days", "prune"]

logger = logging.getLogger("twinbus.metering")

KEEP_DAYS_MAX: Final = 36_500
_RUN: Final = r"(?:-[0-9a-f]{16})?"
_DAY: Final = r"(\d{4}-\d{2}-\d{2})"


def check_keep_days(keep_days: int | None) -> int | None:
    """Returns the number as it is; raises ConfigurationError if it is not allowed."""
    if keep_days is None or (type(keep_days) is int and 1 <= keep_days <= KEEP_DAYS_MAX):
        return keep_days
    raise ConfigurationError(
        f"Invalid value for keep_days: {keep_days!r}",
        hint=f"Use a whole number from 1 to {KEEP_DAYS_MAX}, or leave it out to keep all files",
    )


def prune(directory: Path, kind: str, keep_days: int, today: date) -> int:
    """Delete the old files of a kind of log ("operations", "audit"); returns their number."""
    pattern = re.compile(rf"{re.escape(kind)}{_RUN}-{_DAY}(?:\.\d{{1,9}})?\.jsonl", re.ASCII)
    first_kept = today - timedelta(days=keep_days)
    count = 0
    try:
        with os.scandir(directory) as entries:
            old = [entry for entry in entries if _is_old(entry, pattern, first_kept)]
        for entry in old:
            os.unlink(entry.path)
            count += 1
    except OSError as error:
        logger.warning("Old files of the %s log could not be deleted: %s", kind, error.strerror)
    if count:
        logger.info(
            "Deleted %d files of the %s log that are older than %d days", count, kind, keep_days
        )
    return count


def _is_old(entry: os.DirEntry[str], pattern: re.Pattern[str], first_kept: date) -> bool:
    match = pattern.fullmatch(entry.name)
    if match is None or not entry.is_file(follow_symlinks=False):
        return False
    try:
        return date.fromisoformat(match[1]) < first_kept
    except ValueError:
        return False
