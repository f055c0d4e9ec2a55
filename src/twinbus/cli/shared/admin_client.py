"""The client of a running twinbus broker's HTTP API, for the commands that administer it.

Rule 1: a command needs only the connection string and the HTTP address of the broker; the
        namespace is found by the port in the connection string.
Rule 2: every error is one sentence, without keys and tokens.

    client = AdminClient.from_options("http://localhost:5300", connection_string)
    client.get(client.in_namespace("queues"))
"""

from __future__ import annotations

import json as json_text
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from twinbus.cli.shared.namespace_options import parse_reference
from twinbus.common.connection_string import ConnectionString, parse_connection_string
from twinbus.common.sas_token import make_token
from twinbus.errors import ConfigurationError, TwinbusError

if TYPE_CHECKING:
    from http.client import HTTPConnection

DEFAULT_URL: Final = "http://localhost:5300"
URL_VARIABLE: Final = "TWINBUS_ADMIN_URL"
# All other commands read the second one.
CONNECTION_STRING_VARIABLES: Final = ["TWINBUS_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING"]

# Each request has its own token, so a token does not have to outlive its request.
TOKEN_LIFE_S: Final = 300
# The longest request empties a queue with millions of messages.
ANSWER_TIMEOUT_S: Final = 600.0
# A twinbus broker sends no larger response.
ANSWER_BYTES_MAX: Final = 64 << 20

AdminUrl = Annotated[
    str,
    typer.Option("--admin", help="HTTP address of the broker.", envvar=URL_VARIABLE, metavar="URL"),
]
AdminConnectionString = Annotated[
    str | None,
    typer.Option(
        "--connection-string",
        help="Connection string with the Manage claim: env:VARIABLE, file:PATH, or the text, which "
        "other users of this machine can see.",
        envvar=CONNECTION_STRING_VARIABLES,
        metavar="REFERENCE",
    ),
]
AdminNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        help="Name of the namespace [the one at the port of the connection string].",
        metavar="NAME",
    ),
]


class AdminRefused(TwinbusError):
    """The broker returned an error; ``status`` is the HTTP status code."""

    def __init__(self, sentence: str, *, status: int) -> None:
        self.status = status
        super().__init__(sentence)


class AdminUnreachable(TwinbusError):
    """The broker did not respond over HTTP."""

    is_transient = True


class AdminClient:
    """The HTTP API of one broker, with the credentials of one namespace."""

    def __init__(
        self, url: str, credential: ConnectionString, *, namespace: str | None = None
    ) -> None:
        self.url = url
        self._is_https, self._host, self._port = _parse_url(url)
        self._credential = credential
        self._namespace = namespace

    @classmethod
    def from_options(
        cls, url: str, connection_string: str | None, namespace: str | None = None
    ) -> AdminClient:
        """From the options of a command, which include the environment variables."""
        if not connection_string:
            raise ConfigurationError(
                "A connection string with the Manage claim is required",
                hint=f"Set {CONNECTION_STRING_VARIABLES[1]} or add --connection-string",
            )
        text = parse_reference(connection_string).connection_string
        assert text is not None  # A given reference always has a connection string.
        return cls(url, parse_connection_string(text), namespace=namespace)

    # -- requests -------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def post(self, path: str, json: Any = None) -> Any:
        return self.ask("POST", path, json)

    def put(self, path: str, json: Any = None) -> Any:
        return self.ask("PUT", path, json)

    def delete(self, path: str) -> Any:
        return self.ask("DELETE", path)

    def ask(self, method: str, path: str, json: Any = None) -> Any:
        """One request; the JSON of the response, None without a body. Raises TwinbusError."""
        status, content = self._exchange(method, path, json)
        answer = _parse_json(content)
        if 200 <= status < 300:
            return answer
        sentence = answer.get("error") if isinstance(answer, dict) else None
        raise AdminRefused(
            sentence
            if isinstance(sentence, str)
            else f"{self.url} returned status {status} for {method} {path}",
            status=status,
        )

    def _exchange(self, method: str, path: str, json: Any) -> tuple[int, bytes]:
        # Imported late: it would delay every start of the broker.
        import http.client
        import ssl

        body = None if json is None else json_text.dumps(json).encode()
        headers = {"Authorization": self._token(), "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_BYTES_MAX)
        except ssl.SSLCertVerificationError as error:
            raise AdminUnreachable(
                f"The certificate of {self.url} is not trusted: {error.verify_message}",
                hint="Set SSL_CERT_FILE to the CA file that `twinbus serve` prints",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AdminUnreachable(
                f"Connection to {self.url} failed: {reason}",
                hint="Check that the broker is running, and the address in --admin",
            ) from error
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        import http.client
        import ssl

        if not self._is_https:
            return http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_TIMEOUT_S)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=ANSWER_TIMEOUT_S, context=ssl.create_default_context()
        )

    def _token(self) -> str:
        """A token for the HTTP address, signed with the key of the connection string."""
        credential = self._credential
        if credential.shared_access_signature is not None:
            return credential.shared_access_signature
        host = f"[{self._host}]" if ":" in self._host else self._host
        return make_token(
            resource=f"sb://{host}:{self._port}/",
            rule_name=credential.shared_access_key_name or "",
            key=credential.shared_access_key or "",
            expires_s=int(time.time()) + TOKEN_LIFE_S,
        )

    def connection_string_of(self, rule: str, key: str) -> str:
        """The connection string of this namespace with another access rule."""
        credential = self._credential
        return replace(
            credential,
            shared_access_key_name=rule,
            shared_access_key=key,
            shared_access_signature=None,
            entity_path=None,
        ).to_text()

    # -- the namespace --------------------------------------------------------------------

    def in_namespace(self, path: str) -> str:
        """The URL path of a resource of the namespace."""
        return f"/namespaces/{quote(self.namespace, safe='')}/{quote(path)}"

    @property
    def namespace(self) -> str:
        """The name of the namespace: from the option, or by the port."""
        if self._namespace is None:
            self._namespace = self._find_namespace()
        return self._namespace

    def _find_namespace(self) -> str:
        _status, content = self._exchange("GET", "/health", None)
        health = _parse_json(content)
        served = health.get("namespaces") if isinstance(health, dict) else None
        if served is None and isinstance(health, dict) and "status" in health:
            raise AdminRefused(
                f"The broker at {self.url} has no namespace that the key of the connection string "
                "may manage. Use a key with the Manage claim, or add --namespace NAME.",
                status=401,
            )
        if not isinstance(served, dict):
            raise AdminUnreachable(
                f"{self.url} is not the HTTP address of a twinbus broker",
                hint="Check the address in --admin",
            )
        port = self._credential.effective_port
        for name, facts in served.items():
            if port in (facts.get("port"), facts.get("tls_port")):
                return str(name)
        raise ConfigurationError(
            f"The broker at {self.url} has no namespace at port {port} of the connection string",
            hint="Add --namespace NAME",
        )


def _parse_url(url: str) -> tuple[bool, str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/"):
        raise ConfigurationError(
            f"Invalid value for --admin: {url[:200]!a}", hint="Use http://HOST:PORT"
        )
    is_https = parts.scheme == "https"
    return is_https, host, port or (443 if is_https else 80)


def _parse_json(content: bytes) -> Any:
    try:
        return json_text.loads(content) if content else None
    except ValueError:
        return None
