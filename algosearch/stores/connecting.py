"""How a link connects: the redis package's connections, but for two things that asyncio does in another way.

- *A host's name* is looked up by the loop in an executor whose threads the interpreter waits for when it exits: with a
  name server that does not answer, half a minute after the job is done. So a `Lookup` does it in a pinned thread, whose
  end nobody waits for, and connections are handed addresses.
- *A Unix socket whose queue is full*, as when hundreds of ranks connect at once, says "try again", which asyncio takes
  for a connection that is on its way, and then for one that is made. So it is tried again here until there is room.

The package has had other arguments in each of its versions; what differs is read from their signatures.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import random
import socket
from typing import TYPE_CHECKING, Any, Final

from algosearch.pinned import PinnedThread
from algosearch.stores.address import ServerAddress

if TYPE_CHECKING:
    from redis.asyncio import BlockingConnectionPool


_FULL_S: Final = 0.01
"""Between two attempts at one that is full, on average: in that time a server takes hundreds from its queue."""


class Lookup:
    """The addresses of hosts. Belongs to one loop; its thread is started by the first name that is looked up."""

    def __init__(self) -> None:
        self._thread: PinnedThread | None = None

    async def addresses(self, host: str) -> list[str]:
        """Those of a name, as the system orders them; of an address, itself.

        Raises:
            OSError: it has none.

        Cancellation: the look-up goes on in its thread, and the next one waits for its end.
        """
        if _is_address(host):
            return [host]
        if self._thread is None:
            self._thread = PinnedThread("algosearch-lookup")
        return await self._thread.run(_look_up, host)

    def close(self) -> None:
        """Have the thread end; one that hangs ends with the process."""
        if self._thread is not None:
            self._thread.stop()


def pool_of(address: ServerAddress, lookup: Lookup, *, retries: int, connections: int) -> BlockingConnectionPool:
    """Connections to a server, none of them made yet: each attempt costs at most `timeout_s`."""
    from redis.asyncio import BlockingConnectionPool, Connection, SSLConnection, UnixDomainSocketConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    kind: Any
    if address.path:
        kind = _queueing(UnixDomainSocketConnection)
    else:
        kind = _by_address(SSLConnection if address.tls else Connection, lookup)
    more: dict[str, Any] = {**unnamed(kind), **address.connecting()}
    return BlockingConnectionPool(
        max_connections=connections,
        timeout=address.timeout_s,
        connection_class=kind,
        retry=Retry(NoBackoff(), retries),
        socket_timeout=address.timeout_s,
        socket_connect_timeout=address.timeout_s,
        protocol=2,
        **more,
    )


def unnamed(kind: type) -> dict[str, None]:
    """The arguments by which connections of this kind do not tell the server which client they are of: that is two more
    commands for each."""
    for each in kind.__mro__:
        known = inspect.signature(each.__init__).parameters  # type: ignore[misc]
        if "driver_info" in known:
            return {"driver_info": None}
        if "lib_name" in known:
            return {"lib_name": None, "lib_version": None}
    return {}


def _by_address(kind: Any, lookup: Lookup) -> Any:
    """The same kind of connection, to the first address of its host that takes it."""

    class ByAddress(kind):  # type: ignore[misc]
        async def _connect(self) -> None:
            refused: OSError | None = None
            for address in await lookup.addresses(self.host):
                self._address = address
                try:
                    return await super()._connect()  # type: ignore[no-any-return]
                except OSError as error:
                    refused = error
            assert refused is not None
            raise refused

        def _connection_arguments(self) -> dict[str, Any]:
            arguments = {**super()._connection_arguments(), "host": self._address}
            return {**arguments, "server_hostname": self.host} if arguments.get("ssl") else arguments

    return ByAddress


def _queueing(kind: Any) -> Any:
    """The same kind of connection, which waits for a place in the queue of its socket."""

    class Queueing(kind):  # type: ignore[misc]
        async def _connect(self) -> None:
            async with asyncio.timeout(self.socket_connect_timeout):
                self._reader, self._writer = await asyncio.open_unix_connection(sock=await _connected(self.path))
            await self.on_connect()

    return Queueing


async def _connected(path: str) -> socket.socket:
    """A socket that is connected to this path. Such a connection is made at once, or not at all."""
    while True:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.setblocking(False)
            end.connect(path)
        except BlockingIOError:
            end.close()
        except BaseException:
            end.close()
            raise
        else:
            return end
        await asyncio.sleep(_FULL_S * random.uniform(0.5, 1.5))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
