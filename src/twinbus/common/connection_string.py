"""Connection strings: ``Endpoint=sb://host;SharedAccessKeyName=…;SharedAccessKey=…``.

Rule 1: a string with more than one meaning is refused: repeated keys, two kinds of credential,
        invalid host names.
Rule 2: an error names the invalid key and never repeats a value: values are secrets.
Rule 3: a connection without TLS to another machine needs an explicit
        ``UseDevelopmentEmulator=true``.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from dataclasses import dataclass, field
from typing import Final

from twinbus.common.argument_types import check_type, type_shown
from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError, ConnectionStringError, InvalidEntityPath

__all__ = ["ConnectionString", "namespace_at", "parse_connection_string"]

# The longest endpoint, names and keys have about 1,000 characters, a signature has 2,000.
CONNECTION_STRING_LENGTH_MAX: Final = 8_192
HOST_LENGTH_MAX: Final = 253

TLS_PORT: Final = 5671
PLAIN_PORT: Final = 5672

_ENDPOINT: Final = "Endpoint"
_KEY_NAME: Final = "SharedAccessKeyName"
_KEY: Final = "SharedAccessKey"
_SIGNATURE: Final = "SharedAccessSignature"
_ENTITY_PATH: Final = "EntityPath"
_EMULATOR: Final = "UseDevelopmentEmulator"
_KNOWN: Final = {
    name.lower(): name for name in (_ENDPOINT, _KEY_NAME, _KEY, _SIGNATURE, _ENTITY_PATH, _EMULATOR)
}

_LABEL = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[^\[\]/:?#]*)"
    r"(?::(?P<port>[^/?#]*))?/?",
    re.ASCII | re.IGNORECASE,
)
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_PLAIN_TEXT = re.compile(r"[ -~]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionString:
    """The address of a namespace and a credential for it. Its repr shows no secret."""

    host: str
    """Lower case; an IPv6 address without its brackets."""
    port: int | None = None
    """None when the string has none; see ``effective_port``."""
    scheme: str = "sb"
    shared_access_key_name: str | None = None
    shared_access_key: str | None = field(default=None, repr=False)
    shared_access_signature: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    use_development_emulator: bool = False
    unknown_keys: tuple[str, ...] = ()
    """Unknown keys of the string; their values are not kept."""

    @property
    def uses_tls(self) -> bool:
        return self.scheme != "amqp" and not self.use_development_emulator

    @property
    def effective_port(self) -> int:
        return self.port or (TLS_PORT if self.uses_tls else PLAIN_PORT)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def endpoint(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port else "")

    def to_text(self) -> str:
        """The whole string, secrets included: for users and clients, never for logs."""
        parts: list[tuple[str, str | None]] = [
            (_ENDPOINT, self.endpoint),
            (_KEY_NAME, self.shared_access_key_name),
            (_KEY, self.shared_access_key),
            (_SIGNATURE, self.shared_access_signature),
            (_ENTITY_PATH, self.entity_path),
            # The SDK compares with exactly this spelling.
            (_EMULATOR, "true" if self.use_development_emulator else None),
        ]
        return ";".join(f"{name}={value}" for name, value in parts if value is not None)


def parse_connection_string(text: str, *, entity_path: str | None = None) -> ConnectionString:
    """Parse a connection string; ``entity_path`` is the entity that the caller uses it for.

    Raises ConnectionStringError. Issues one warning for all unknown keys.
    """
    values, unknown = _split(text)
    if _ENDPOINT not in values:
        raise ConnectionStringError(
            "the connection string has no Endpoint",
            key=_ENDPOINT,
            hint="Begin it with Endpoint=sb://<host>",
        )
    _check_credential(values)
    scheme, host, port = _endpoint(values[_ENDPOINT])
    parsed = ConnectionString(
        scheme=scheme,
        host=host,
        port=port,
        shared_access_key_name=values.get(_KEY_NAME),
        shared_access_key=values.get(_KEY),
        shared_access_signature=values.get(_SIGNATURE),
        entity_path=_entity_path(values.get(_ENTITY_PATH), entity_path),
        use_development_emulator=_flag(values.get(_EMULATOR, "false")),
        unknown_keys=unknown,
    )
    _check_plain_text(parsed)
    if unknown:
        warnings.warn(
            f"The connection string has unknown keys: {', '.join(unknown)}",
            stacklevel=2,
        )
    return parsed


def namespace_at(fully_qualified_namespace: str) -> ConnectionString:
    """The namespace at a host (and port), without a credential."""
    check_type(
        "fully_qualified_namespace",
        fully_qualified_namespace,
        str,
        hint="Use for example contoso.servicebus.windows.net, then the credential",
    )
    try:
        _scheme, host, port = _endpoint(f"sb://{fully_qualified_namespace}")
    except ConnectionStringError as error:
        raise ConfigurationError(
            "the fully qualified namespace is not a host name",
            hint="Use for example contoso.servicebus.windows.net, without a scheme",
        ) from error
    return ConnectionString(host=host, port=port)


def _split(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    if not isinstance(text, str):
        raise ConnectionStringError(
            f"a connection string must be a str, got {type_shown(text)}",
            hint="Begin it with Endpoint=sb://<host>",
        )
    if len(text) > CONNECTION_STRING_LENGTH_MAX:
        raise ConnectionStringError(
            f"a connection string has at most {CONNECTION_STRING_LENGTH_MAX} characters, "
            f"got {len(text)}"
        )
    values: dict[str, str] = {}
    unknown: list[str] = []
    for part in text.strip().split(";"):
        if not part.strip():
            continue
        name, value = _name_and_value(part)
        if name in values or name in unknown:
            raise ConnectionStringError(
                f"the connection string has the key {name!r} twice", key=name
            )
        if name.lower() in _KNOWN:
            values[name] = value
        else:
            unknown.append(name)
    if not values:
        raise ConnectionStringError(
            "the connection string is empty",
            hint="Copy it from an access rule, or from the output of `twinbus serve`",
        )
    return values, tuple(unknown)


def _name_and_value(part: str) -> tuple[str, str]:
    # Only the first "=" separates: base64 keys end with more of them.
    written, equals, value = part.partition("=")
    written = written.strip()
    if not equals or not re.fullmatch(r"[A-Za-z]{1,40}", written, re.ASCII):
        raise ConnectionStringError(
            "a part of the connection string is not of the form Key=Value",
            hint="Separate the parts by ';', and use no ';' in a value",
        )
    name = _KNOWN.get(written.lower(), written.lower())
    if not _PLAIN_TEXT.fullmatch(value) or value != value.strip():
        raise ConnectionStringError(
            f"the value of {name!r} has a leading or trailing blank or an invalid character",
            key=name,
        )
    if not value and name in _KNOWN.values():
        raise ConnectionStringError(f"the value of {name!r} is empty", key=name)
    return name, value


def _check_credential(values: dict[str, str]) -> None:
    if _SIGNATURE in values:
        for name in (_KEY, _KEY_NAME):
            if name in values:
                raise ConnectionStringError(
                    f"the connection string has both {name} and {_SIGNATURE}",
                    key=name,
                    hint="Remove one of the two",
                )
        return
    for name in (_KEY_NAME, _KEY):
        if name not in values:
            raise ConnectionStringError(
                f"the connection string has no {name}",
                key=name,
                hint=f"Add {_KEY_NAME} and {_KEY}, or {_SIGNATURE}",
            )


def _endpoint(text: str) -> tuple[str, str, int | None]:
    match = _URL.fullmatch(text)
    if match is None:
        raise ConnectionStringError(
            "the value of Endpoint is not of the form sb://<host>[:port]", key=_ENDPOINT
        )
    scheme = match["scheme"].lower()
    if scheme not in ("sb", "amqp", "amqps"):
        raise ConnectionStringError(
            "the scheme of Endpoint is not sb, amqp or amqps", key=_ENDPOINT
        )
    return scheme, _host(match["host"].lower()), _port(match["port"])


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            text = ""
    if len(text) > HOST_LENGTH_MAX or not _HOST.fullmatch(text):
        raise ConnectionStringError(
            "the host name of Endpoint may have ASCII letters, digits, '.' and '-' only",
            key=_ENDPOINT,
            hint="Use the xn-- form of an international name, and no user name before the host",
        )
    return text


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    if not _PORT.fullmatch(text) or int(text) > 65_535:
        raise ConnectionStringError(
            "the port of Endpoint is not a number from 1 to 65535", key=_ENDPOINT
        )
    return int(text)


def _entity_path(given: str | None, wanted: str | None) -> str | None:
    if given is None:
        return wanted
    try:
        canonical = parse_entity_path(given)
    except InvalidEntityPath:
        raise ConnectionStringError(
            "the value of EntityPath is not the path of an entity", key=_ENTITY_PATH
        ) from None
    if wanted is not None and parse_entity_path(wanted) != canonical:
        raise ConnectionStringError(
            f"EntityPath is not that of {wanted!r}, the entity to be used",
            key=_ENTITY_PATH,
            hint="Use the connection string of the namespace, or of that entity",
        )
    return given


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConnectionStringError(
            f"the value of {_EMULATOR} is neither true nor false", key=_EMULATOR
        )
    return text.lower() == "true"


def _check_plain_text(parsed: ConnectionString) -> None:
    if parsed.scheme == "amqp" and not (parsed.is_loopback or parsed.use_development_emulator):
        raise ConnectionStringError(
            "Endpoint is another machine, without TLS (amqp://)",
            key=_ENDPOINT,
            hint=f"Use sb:// or amqps://, or add {_EMULATOR}=true if you trust the network",
        )
