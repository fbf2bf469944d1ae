"""What went wrong with a call to a server, and what to do about it: the errors of the redis package, of TLS and of the
system as a `Hindrance`."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final

from algosearch.stores.address import ServerAddress
from algosearch.stores.trouble import Hindrance, Kind

_REMEDIES: Final[dict[Kind, str]] = {
    "unreachable": "start it, or correct its address",
    "refused": "correct the user and password in its address, or what the server lets that user do",
    "full": "give it more memory or disk space, or delete records",
    "read_only": "give the address of the server that this one follows",
    "failed": "see to the server, or set another prefix in its address",
}
_WORDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("OOM", "full"),
    ("MISCONF", "full"),  # it cannot write to its disk
    ("READONLY", "read_only"),
    ("NOAUTH", "refused"),
    ("WRONGPASS", "refused"),
    ("NOPERM", "refused"),
    ("ACL failure", "refused"),
    ("can't run this command", "refused"),
    ("LOADING", "unreachable"),
    ("MASTERDOWN", "unreachable"),
)
"""An error within a script has its own class in its text."""
_MORE_PRECISELY: Final = (
    ("max number of clients", "raise its maxclients, or end some of its clients"),
    ("DB index", "correct the database in its address"),
    ("closed by server", "start it, correct its address, or set a password on it if it is in protected mode"),
)
"""What says more than its class does, and what to do about it."""
_ONE_SERVER: Final = "give the address of a server that is no cluster: a script needs all its keys in one place"


def hindrance_of(error: Exception, timeout_s: float, address: ServerAddress) -> Hindrance:
    """What a call met that took at most `timeout_s`."""
    from redis import exceptions

    if isinstance(error, TimeoutError | exceptions.TimeoutError):
        remedy = _REMEDIES["unreachable"] + (", or write redis:// if it does not speak TLS" if address.tls else "")
        return Hindrance("unreachable", f"the server did not answer within {timeout_s:g} s", remedy)
    if address.tls:
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLError):
                return _of_tls(cause)
            if isinstance(cause, FileNotFoundError | PermissionError):
                return Hindrance("refused", f"{cause}", "correct the paths ca, certificate and key in its address")
    error = next((cause for cause in _causes(error) if isinstance(cause, exceptions.AuthenticationError)), error)
    reason = f"{error}"[:200] or type(error).__name__
    of_cluster = (exceptions.ClusterDownError, exceptions.AskError, exceptions.ClusterCrossSlotError)
    if isinstance(error, of_cluster) and not isinstance(error, exceptions.MasterDownError):
        return Hindrance("failed", reason, _ONE_SERVER)
    kinds: tuple[tuple[type[Exception], Kind], ...] = (
        (exceptions.AuthenticationError, "refused"),
        (exceptions.AuthorizationError, "refused"),
        (exceptions.NoPermissionError, "refused"),
        (exceptions.OutOfMemoryError, "full"),
        (exceptions.ReadOnlyError, "read_only"),
        (exceptions.BusyLoadingError, "unreachable"),
        (exceptions.MasterDownError, "unreachable"),
    )
    for kind_of_error, kind in kinds:
        if isinstance(error, kind_of_error):
            return _hindrance(kind, reason)
    if isinstance(error, exceptions.ResponseError):
        return _hindrance(next((kind for word, kind in _WORDS if word in reason), "failed"), reason)
    if address.tls and address.certificate is None:  # told only after the client takes the connection for made
        remedy = (
            f"{_REMEDIES['unreachable']}, or set certificate=PATH and key=PATH in it if it asks that of its clients"
        )
        return Hindrance("unreachable", reason, remedy)
    return _hindrance("unreachable", reason)


def _hindrance(kind: Kind, reason: str) -> Hindrance:
    remedy = next((remedy for text, remedy in _MORE_PRECISELY if text in reason), _REMEDIES[kind])
    return Hindrance(kind, reason, remedy)


def _causes(error: BaseException | None) -> Iterator[Exception]:
    for _ in range(8):
        if not isinstance(error, Exception):
            return
        yield error
        error = error.__cause__ or error.__context__


def _of_tls(error: ssl.SSLError) -> Hindrance:
    """Which of the three paths, or the scheme, is to be set."""
    said = f"{error.reason or error}".replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"the server's certificate is not to be trusted: {error.verify_message}"
        remedy = "set ca=PATH in its address to the authority that signed it, or correct its host"
        return Hindrance("refused", reason, remedy)
    if "certificate required" in said or "handshake failure" in said:
        remedy = "set certificate=PATH and key=PATH in its address to what the server asks of its clients"
    elif "wrong version" in said or "record layer" in said:
        remedy = "write redis:// if it does not speak TLS"
    else:
        remedy = "correct ca, certificate and key in its address"
    return Hindrance("refused", f"TLS with the server failed: {said}", remedy)
