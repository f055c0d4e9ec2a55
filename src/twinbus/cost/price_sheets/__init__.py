"""Price sheets as files: those that twinbus includes, and the user's own.

standard.toml  basic.toml  premium.toml      published prices, with their source and date
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from twinbus.cost.prices import PriceSheet, read_price_sheet
from twinbus.errors import ConfigurationError

__all__ = ["SHEETS", "load_prices"]

SHEETS: Final = ("standard", "basic", "premium")
# A price sheet has a page of text; a larger file is something else.
SHEET_BYTES_MAX: Final = 100_000


def load_prices(name: str) -> PriceSheet:
    """The price sheet with this name, or in the file with this path."""
    if name in SHEETS:
        text = (files("twinbus.cost.price_sheets") / f"{name}.toml").read_text(encoding="utf-8")
        return read_price_sheet(text, name)
    return read_price_sheet(_read_file(name), name)


def _read_file(name: str) -> str:
    hint = f"Use {', '.join(SHEETS)} or the path of a TOML file"
    try:
        path = Path(name)
        if not path.is_file():
            raise ConfigurationError(f"Price sheet {name!r:.200} not found", hint=hint)
        with path.open("rb") as file:
            content = file.read(SHEET_BYTES_MAX + 1)
        if len(content) > SHEET_BYTES_MAX:
            raise ConfigurationError(
                f"Price sheet {name!r} is larger than {SHEET_BYTES_MAX:,} bytes", hint=hint
            )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError(f"Price sheet {name!r} is not UTF-8 text", hint=hint) from None
    except OSError as error:
        raise ConfigurationError(
            f"Price sheet {name!r:.200} cannot be read: {error.strerror}", hint=hint
        ) from error
