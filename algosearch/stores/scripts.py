"""What is done on the server in one step, as Lua: claims by the server's clock, and commits that compare and swap.

The rules are those of `algosearch.stores.rules`, and the contract suite holds both to the same model. They are written
down twice because a lease has to be read, judged and written at once, by the one clock that all hosts share; a lease is
stored in the same bytes (`rules.encode_lease`), so that looking at one needs no script.

A record's value is a tag of sixteen bytes and then the record. To compare and swap is to compare tags: whoever wins is
decided in Python (`rules.settle`), from the bytes that were really there.

Rejected: optimistic claims in Python (two trips, and no clock of the server), decoding records in Lua (they are not to
be trusted there either), comparing revisions that lie beside the record (whoever changes one may forget the other).
"""

from __future__ import annotations

from typing import Final

from algosearch.stores.rules import FORGOTTEN_S

TAG_BYTES: Final = 16
NEWS_KEPT: Final = 10_000
"""About so many announcements; who is further behind looks at everything."""

_COMMON: Final = f"""
local function now(clock)
  if clock ~= '' then return tonumber(clock) end
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end
local function read(hash, digest)
  local raw = redis.call('HGET', hash, digest)
  if not raw then return nil end
  local ok, l = pcall(cmsgpack.unpack, raw)
  if not ok or type(l) ~= 'table' or type(l[1]) ~= 'string' or type(l[2]) ~= 'number' or type(l[3]) ~= 'string'
    or type(l[4]) ~= 'number' or type(l[5]) ~= 'number' or type(l[6]) ~= 'boolean' or #l ~= 6 or l[2] < 0 then
    return nil
  end
  return l, raw
end
local function in_force(l, t) return math.abs(t - l[4]) < l[5] end
local function announce(news, digest, writer)
  redis.call('XADD', news, 'MAXLEN', '~', {NEWS_KEPT}, '*', writer, digest)
end
"""

CLAIM: Final = (
    _COMMON
    + f"""
local digest, owner, expiry_s, trying = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local t, lapses = now(ARGV[5]), 0
local l, raw = read(KEYS[1], digest)
if l then
  if l[1] ~= owner and in_force(l, t) then return {{raw, false}} end
  if not l[6] and math.abs(t - l[4]) < {FORGOTTEN_S} then
    lapses = l[2] + (l[1] ~= owner and 1 or 0)
    if trying == '' then trying = l[3] end
  end
end
raw = cmsgpack.pack({{owner, lapses, trying, t, expiry_s, false}})
redis.call('HSET', KEYS[1], digest, raw)
return {{raw, KEYS[2] and redis.call('GET', KEYS[2]) or false}}
"""
)
"""KEYS: claims, and the record if it is to be read. ARGV: digest, owner, expiry_s, trying, clock or ''. The lease in
force; and the record's value, if there is one and the lease was granted. It is no news: a thousand ranks
would read of every claim, and who meets one looks at all of them."""

RENEW: Final = (
    _COMMON
    + """
local t = now(ARGV[5])
local l = read(KEYS[1], ARGV[1])
if not l or l[1] ~= ARGV[2] or not in_force(l, t) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack({l[1], l[2], ARGV[4], t, tonumber(ARGV[3]), l[6]}))
return 1
"""
)
"""As `CLAIM`. 1 if it was the owner's to renew."""

RELEASE: Final = (
    _COMMON
    + """
local l = read(KEYS[1], ARGV[1])
if l and l[1] == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  if not l[6] then announce(KEYS[2], ARGV[1], ARGV[3]) end
end
return 1
"""
)
"""KEYS: claims, news. ARGV: digest, owner, writer. After a commit it is no news: the commit was."""

COMMIT: Final = (
    _COMMON
    + f"""
if redis.call('GETRANGE', KEYS[1], 0, {TAG_BYTES - 1}) ~= ARGV[3] then return redis.call('GET', KEYS[1]) or '' end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[4], 0, ARGV[1])
local l = read(KEYS[2], ARGV[1])
if l and not l[6] then
  redis.call('HSET', KEYS[2], ARGV[1], cmsgpack.pack({{l[1], l[2], l[3], l[4], l[5], true}}))
end
announce(KEYS[3], ARGV[1], ARGV[4])
return 1
"""
)
"""KEYS: record, claims, news, index. ARGV: digest, value, the tag that is expected ('' for none), writer. 1 if it was
written, else what is there."""

DELETE: Final = (
    _COMMON
    + """
local count = 0
for i = 3, #KEYS do
  local digest = ARGV[i - 1]
  redis.call('ZREM', KEYS[1], digest)
  if redis.call('DEL', KEYS[i]) == 1 then
    count = count + 1
    announce(KEYS[2], digest, ARGV[1])
  end
end
return count
"""
)
"""KEYS: index, news, records. ARGV: writer, their digests. How many there were."""

TAGS: Final = f"""
local tags = {{}}
for i = 1, #KEYS do tags[i] = redis.call('GETRANGE', KEYS[i], 0, {TAG_BYTES - 1}) end
return tags
"""
"""KEYS: records. The tag of each; '' where there is none."""

LENGTHS: Final = """
local lengths = {}
for i = 1, #KEYS do lengths[i] = redis.call('STRLEN', KEYS[i]) end
return lengths
"""
"""KEYS: records. The bytes of each."""
