"""Asking a running broker over HTTP: what the commands that administer one share.

Rule 1: the connection string is all that a command needs besides the address of the HTTP side;
        which namespace it belongs to is found by its port.
Rule 2: whatever goes wrong is one sentence. A key or a token is in none of them.

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

from twinbus.cli.shared.namespace_options import reference_of
from twinbus.common.connection_string import ConnectionString, parse_connection_string
from twinbus.common.sas_token import make_token
from twinbus.errors import ConfigurationError, TwinbusError

if TYPE_CHECKING:
    from http.client import HTTPConnection

DEFAULT_URL: Final = "http://localhost:5300"
URL_VARIABLE: Final = "TWINBUS_ADMIN_URL"
# The second is what all other commands read.
CONNECTION_STRING_VARIABLES: Final = ["TWINBUS_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING"]

# Each request shows a token of its own, so that it need not live longer than the request.
TOKEN_LIFE_S: Final = 300
# Emptying a queue of millions of messages is the longest thing that is asked for.
ANSWER_TIMEOUT_S: Final = 600.0
# An answer larger than that is not one of ours.
ANSWER_BYTES_MAX: Final = 64 << 20

AdminUrl = Annotated[
    str,
    typer.Option("--admin", help="The broker's HTTP address.", envvar=URL_VARIABLE, metavar="URL"),
]
AdminConnectionString = Annotated[
    str | None,
    typer.Option(
        "--connection-string",
        help="Of the namespace, with the claim Manage: env:VARIABLE, file:PATH, or the text "
        "itself, which other users of this machine could see.",
        envvar=CONNECTION_STRING_VARIABLES,
        metavar="REFERENCE",
    ),
]
AdminNamespace = Annotated[
    str | None,
    typer.Option("--namespace", help="Its name, if the port does not tell.", metavar="NAME"),
]


class AdminRefused(TwinbusError):
    """The broker answered a request with an error; ``status`` is the one of HTTP."""

    def __init__(self, sentence: str, *, status: int) -> None:
        self.status = status
        super().__init__(sentence)


class AdminUnreachable(TwinbusError):
    """No answer came from the broker's HTTP side."""

    is_transient = True


class AdminClient:
    """The HTTP side of one broker, asked in the name of one namespace."""

    def __init__(
        self, url: str, credential: ConnectionString, *, namespace: str | None = None
    ) -> None:
        self.url = url
        self._is_https, self._host, self._port = _parsed_url(url)
        self._credential = credential
        self._namespace = namespace

    @classmethod
    def from_options(
        cls, url: str, connection_string: str | None, namespace: str | None = None
    ) -> AdminClient:
        """From what a command was given; the environment was looked at by the command line."""
        if not connection_string:
            raise ConfigurationError(
                "a connection string with the claim Manage is needed",
                hint=f"Set {CONNECTION_STRING_VARIABLES[1]} or give --connection-string",
            )
        text = reference_of(connection_string).connection_string
        assert text is not None  # A reference that was given is one.
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
        """One request; the JSON of its answer, None if it has none. Raises TwinbusError."""
        status, content = self._exchange(method, path, json)
        answer = _parsed(content)
        if 200 <= status < 300:
            return answer
        sentence = answer.get("error") if isinstance(answer, dict) else None
        raise AdminRefused(
            sentence
            if isinstance(sentence, str)
            else f"{self.url} answered {method} {path} with status {status}",
            status=status,
        )

    def _exchange(self, method: str, path: str, json: Any) -> tuple[int, bytes]:
        # Imported here, because every start of the broker would wait for it otherwise.
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
                f"the certificate of {self.url} is not trusted: {error.verify_message}",
                hint="Set SSL_CERT_FILE to the authority's file, which `twinbus serve` names",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AdminUnreachable(
                f"no answer came from {self.url}: {reason}",
                hint="Check that the broker runs, and the address given with --admin",
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
        """Made out to the HTTP side, with the key of the connection string."""
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
        """The one of this namespace with another access rule."""
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
        """The address of something inside the namespace of the connection string."""
        return f"/namespaces/{quote(self.namespace, safe='')}/{quote(path)}"

    @property
    def namespace(self) -> str:
        """The name of the namespace: as given, or of the one that has the port."""
        if self._namespace is None:
            self._namespace = self._found_namespace()
        return self._namespace

    def _found_namespace(self) -> str:
        _status, content = self._exchange("GET", "/health", None)
        health = _parsed(content)
        served = health.get("namespaces") if isinstance(health, dict) else None
        if served is None and isinstance(health, dict) and "status" in health:
            raise AdminRefused(
                f"The broker at {self.url} has no namespace that the key of the connection string "
                "may manage. Use a key with the claim Manage, or name the namespace with "
                "--namespace.",
                status=401,
            )
        if not isinstance(served, dict):
            raise AdminUnreachable(
                f"{self.url} does not answer like a twinbus broker",
                hint="Check the address given with --admin",
            )
        port = self._credential.effective_port
        for name, facts in served.items():
            if port in (facts.get("port"), facts.get("tls_port")):
                return str(name)
        raise ConfigurationError(
            f"no namespace of the broker at {self.url} has the port {port} of the connection "
            "string",
            hint="Name it with --namespace",
        )


def _parsed_url(url: str) -> tuple[bool, str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/"):
        raise ConfigurationError(
            f"{url[:200]!a} is not the address of a broker's HTTP side",
            hint="Write it as http://host:port",
        )
    is_https = parts.scheme == "https"
    return is_https, host, port or (443 if is_https else 80)


def _parsed(content: bytes) -> Any:
    try:
        return json_text.loads(content) if content else None
    except ValueError:
        return None
