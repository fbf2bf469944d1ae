"""`ServerAddress`: where a server is and how to speak to it, from the one URL that a user writes.

    redis://[user[:password]@]host[:port][/database][?option=value&…]
    rediss://…                                            the same over TLS
    unix://[user[:password]@]/path/of/the/socket[?database=0&…]

Options: `prefix` (of every key on the server), `timeout_s` (the most that one call may cost), `directory` (where this
host keeps what comes from the server; empty for nowhere), and for TLS `ca`, `certificate`, `key` (paths).

A password is never shown: neither `shown` nor `repr` has it.
"""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from algosearch.errors import StoreUnusable

PORT: Final = 6379
PREFIX: Final = "algosearch"
TIMEOUT_S: Final = 3.0
"""The most that a call may cost, connecting included, unless the URL says otherwise."""

_OPTIONS: Final = frozenset({"prefix", "timeout_s", "directory", "database", "ca", "certificate", "key"})
_FOR_TLS: Final = frozenset({"ca", "certificate", "key"})
_FORM: Final = "write redis://[user:password@]host[:port][/database], rediss:// for TLS, or unix:///path/of/the/socket"
_ESCAPE: Final = (
    "write special characters of a user or password as in every URL: %40 for @, %2F for /, %3F for ?, %23 for #"
)


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A checked URL."""

    shown: str
    """The URL without user, password and options: for messages, logs and statistics."""
    host: str = ""
    port: int = PORT
    path: str = ""
    """Of a Unix socket; then `host` is empty."""
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    directory: str | None = None
    """As the URL has it: None for the usual place, empty for none."""

    def __repr__(self) -> str:
        return f"<ServerAddress {self.shown}>"

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """The address in `url`.

        Raises:
            StoreUnusable: it is none, with what is wrong and how it is written.
        """
        parts, port = _split(url)
        shown = _shown(parts, port)
        options = _options(parts, shown)
        local = parts.scheme == "unix"
        database = options.get("database", "" if local else parts.path.strip("/")) or "0"
        if not database.isascii() or not database.isdigit():
            raise StoreUnusable(shown, f"its database {database!r} is no number", _FORM)
        if local and (not parts.path or parts.netloc.rpartition("@")[2]):
            raise StoreUnusable(shown, "it names no absolute path of a socket", _FORM)
        if not local and not parts.hostname:
            raise StoreUnusable(shown, "it names no host", _FORM)
        return cls(
            shown=shown,
            host="" if local else parts.hostname or "",
            port=PORT if port is None else port,
            path=unquote(parts.path) if local else "",
            database=int(database),
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=parts.scheme == "rediss",
            ca=options.get("ca"),
            certificate=options.get("certificate"),
            key=options.get("key"),
            prefix=_prefix(options.get("prefix", PREFIX), shown),
            timeout_s=_seconds(options.get("timeout_s"), shown),
            directory=options.get("directory"),
        )

    def connecting(self) -> dict[str, Any]:
        """Keyword arguments of the connection class of the redis package, but for timeouts and retries."""
        common: dict[str, Any] = {"db": self.database, "username": self.user, "password": self.password}
        if self.path:
            return {**common, "path": self.path}
        common |= {"host": self.host, "port": self.port}
        if self.tls:
            common |= {"ssl_ca_certs": self.ca, "ssl_certfile": self.certificate, "ssl_keyfile": self.key}
            common["ssl_check_hostname"] = True  # older versions of the package leave it out
        return common


def _split(url: str) -> tuple[SplitResult, int | None]:
    """The parts of a URL, and its port. Nothing of one that cannot be split is shown: it may be of a password."""
    scheme = url.partition(":")[0]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        reason = "its host or its port cannot be read, or a special character of its password is not written as one"
        raise StoreUnusable(f"{scheme}:…", reason, f"{_FORM}; {_ESCAPE}") from None
    if parts.fragment or "#" in url or ("@" in parts.path and parts.scheme != "unix"):
        raise StoreUnusable(f"{scheme}:…", "it has a # in it, or an @ behind a /, ? or #", _ESCAPE)
    if not url[len(scheme) :].startswith("://"):
        raise StoreUnusable(f"{scheme}:…", "it is no URL", _FORM)
    return parts, port


def _options(parts: SplitResult, shown: str) -> dict[str, str]:
    """What stands behind the question mark."""
    # Where there is an `@` in it, it may be the rest of a password.
    spoilt = _ESCAPE if "@" in parts.query else ""
    shown = f"{parts.scheme}:…" if spoilt else shown
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        what = "" if spoilt else f" {parts.query!r}"
        raise StoreUnusable(shown, f"its options{what} cannot be read", spoilt or _FORM) from None
    options = dict(pairs)
    known = ", ".join(sorted(_OPTIONS))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        what = "one of its options is none" if spoilt else f"it has no option {unknown[0]}"
        raise StoreUnusable(shown, what, spoilt or f"there is: {known}")
    if len(options) < len(pairs):
        twice = next(name for name in options if sum(name == other for other, _ in pairs) > 1)
        raise StoreUnusable(shown, f"it has the option {twice} twice", "leave one of them out")
    papers = sorted(options.keys() & _FOR_TLS)
    if papers and parts.scheme != "rediss":
        raise StoreUnusable(shown, f"its option {papers[0]} is for TLS", "write rediss://, or leave it out")
    return options


def _shown(parts: SplitResult, port: int | None) -> str:
    if parts.scheme == "unix":
        return "unix://…" if parts.netloc.rpartition("@")[2] else f"unix://{parts.path}"
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{PurePath(parts.path or '/')}".rstrip("/")


def _prefix(prefix: str, shown: str) -> str:
    if not prefix or not prefix.isprintable() or len(prefix) > 64 or " " in prefix:
        raise StoreUnusable(shown, f"its prefix {prefix!r:.80} is none", "use a few printable characters, no space")
    return prefix


def _seconds(text: str | None, shown: str) -> float:
    if text is None:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.01 <= seconds <= 60.0:  # false for what is no number
        raise StoreUnusable(shown, f"its timeout_s {text!r:.80} is none", "use seconds between 0.01 and 60")
    return seconds
