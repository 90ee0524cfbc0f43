"""The atomic steps of a journal in Redis, as Lua scripts: a check and the write that depends on it are one step.

    PREFIX:log       stream; the entry TERM-NUMBER is a group whose last record is NUMBER, TERM-0 a claim
    PREFIX:top       hash: id of the newest entry, last: the number of the newest record, lost: see `NOTE_LOSS`
    PREFIX:lease     who may claim the log, for a while
    PREFIX:standby   who follows the log and waits for the lease
    PREFIX:snapshots hash: TERM-NUMBER of each snapshot and its description
    PREFIX:snapshot:TERM-NUMBER:PLACE a piece of a snapshot

Each claim begins a term. The server itself refuses an entry that is not above the newest one, and `APPEND` one that
does not follow directly on the entry that its writer has seen. So a writer of an earlier term writes nothing more, a
repeated write has no second effect, and a log that has lost its tail is noticed at the next write.
"""

from __future__ import annotations

from typing import Final

#: Keys: lease, standby. Arguments: holder, milliseconds, a holder that is known to be dead, whether this one is noted
#: as the standby if it does not get the lease. Returns another holder, or nothing.
ACQUIRE: Final = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and held ~= ARGV[3] then
  if ARGV[4] == '1' then redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
  return held
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return false
"""

#: Keys: lease, standby. Arguments: holder, milliseconds. Gives the lease to the standby; without one, to anybody.
HAND_OVER: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return end
local standby = redis.call('GET', KEYS[2])
if standby then redis.call('SET', KEYS[1], standby, 'PX', ARGV[2]) else redis.call('DEL', KEYS[1]) end
"""

#: Keys: lease, standby. Arguments: holder.
LET_GO: Final = """
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
"""

#: Keys: lease, top. Arguments: holder, milliseconds, term. Returns the newest entry, the newest record, what was lost.
RENEW: Final = """
local top = redis.call('HMGET', KEYS[2], 'id', 'last', 'lost')
local held = redis.call('GET', KEYS[1])
local term = tonumber(string.match(top[1] or '0-0', '^%d+'))
if term == tonumber(ARGV[3]) and (not held or held == ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {top[1] or '0-0', top[2] or '0', top[3] or '0'}
"""

#: Keys: log, top, lease. Arguments: holder, the last record that counts (empty: the newest), whether a loss is
#: accepted. Returns the entry (empty: there is a loss, and nothing was changed), the last record, what was lost.
CLAIM: Final = """
if redis.call('GET', KEYS[3]) ~= ARGV[1] then return redis.error_reply('NOLEASE') end
local top = redis.call('HMGET', KEYS[2], 'id', 'last', 'lost')
local last = top[2] or '0'
if top[3] and ARGV[3] ~= '1' then return {'', last, top[3]} end
local base = ARGV[2] ~= '' and ARGV[2] or last
local claim = string.format('%d-0', tonumber(string.match(top[1] or '0-0', '^%d+')) + 1)
redis.call('XADD', KEYS[1], claim, 'base', base, 'who', ARGV[1])
redis.call('HSET', KEYS[2], 'id', claim, 'last', base)
if tonumber(base) < tonumber(last) and not top[3] then redis.call('HSET', KEYS[2], 'lost', last) end
return {claim, base, top[3] or '0'}
"""

#: Keys: log, top. Arguments: the entry, the entry before it, its last record, the number of records, checksum, content,
#: whether a loss is accepted: then it is forgotten with the first entry, which tells that the log is another one.
#: An entry that is there already gets one more write, since the server counts replicas from a connection's last write.
APPEND: Final = """
local top = redis.call('HMGET', KEYS[2], 'id', 'lost')
if top[2] and ARGV[7] ~= '1' then return redis.error_reply('TAILLOST ' .. top[2]) end
local id = top[1] or '0-0'
if id ~= ARGV[1] then
  if id ~= ARGV[2] then return redis.error_reply('NOTLAST ' .. id) end
  redis.call('XADD', KEYS[1], ARGV[1], 'count', ARGV[4], 'sum', ARGV[5], 'data', ARGV[6])
end
redis.call('HSET', KEYS[2], 'id', ARGV[1], 'last', ARGV[3])
if top[2] then redis.call('HDEL', KEYS[2], 'lost') end
return ARGV[1]
"""

#: Keys: log, top. Arguments: the writer's term, the newest record that it has acknowledged. Writes down that records up
#: to this one are lost, if they are: the log of the writer's own term ends before it, or the next term began before it.
NOTE_LOSS: Final = """
local top = redis.call('HMGET', KEYS[2], 'id', 'last', 'lost')
local base = tonumber(top[2] or '0')
if tonumber(string.match(top[1] or '0-0', '^%d+')) > tonumber(ARGV[1]) then
  local next = string.format('%d-0', tonumber(ARGV[1]) + 1)
  local claim = redis.call('XRANGE', KEYS[1], next, next)
  if not claim[1] then return false end
  base = tonumber(claim[1][2][2])
end
if base >= tonumber(ARGV[2]) then return false end
if tonumber(top[3] or '0') < tonumber(ARGV[2]) then redis.call('HSET', KEYS[2], 'lost', ARGV[2]) end
return base
"""

#: Keys: log, top, snapshots. Arguments: term, the snapshot's entry, its description, how many snapshots are kept.
#: Returns the entries of the snapshots that are no longer needed.
KEEP: Final = """
local id = redis.call('HGET', KEYS[2], 'id') or '0-0'
if string.match(id, '^%d+') ~= ARGV[1] then return redis.error_reply('NOTLAST ' .. id) end
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
local kept = {}
for _, key in ipairs(redis.call('HKEYS', KEYS[3])) do
  local term, number = string.match(key, '^(%d+)-(%d+)$')
  table.insert(kept, {tonumber(term), tonumber(number), key})
end
table.sort(kept, function(a, b) if a[1] ~= b[1] then return a[1] > b[1] end return a[2] > b[2] end)
local dropped = {}
for place = tonumber(ARGV[4]) + 1, #kept do
  redis.call('HDEL', KEYS[3], kept[place][3])
  table.insert(dropped, kept[place][3])
end
if #kept >= tonumber(ARGV[4]) then redis.call('XTRIM', KEYS[1], 'MINID', kept[tonumber(ARGV[4])][3]) end
return dropped
"""
