"""The atomic steps of a journal in Redis, as Lua scripts: a check and the write that depends on it are one step.

    PREFIX:log       stream; the entry TERM-NUMBER is a group whose last record is NUMBER, TERM-0 a claim
    PREFIX:top       hash: id of the newest entry, last: the number of the newest record, who: TERM OWNER,
                     lost and floor: see `NOTE_LOSS`, accepted: TERM-NUMBER of the last loss that was accepted,
                     by: who as the newest group was written, free: whether its last owner has given the lease back
    PREFIX:lease     who may claim the log, for a while
    PREFIX:standby   who follows the log and waits for the lease
    PREFIX:snapshots hash: TERM-NUMBER of each snapshot and its description
    PREFIX:snapshot:TERM-NUMBER:PLACE a piece of a snapshot

Each claim begins a term. The server itself refuses an entry that is not above the newest one, and `APPEND` one that
does not follow directly on the entry that its writer has seen. So a writer of an earlier term writes nothing more, a
repeated write has no second effect, and a log that has lost its tail is noticed at the next write.

The names of the keys share a hash tag, so a script may use all of them in a cluster's slot.
"""

from __future__ import annotations

from typing import Final

from tracker.journal.redis.address import RedisAddress

#: Keys: lease, standby, top, log. Arguments: holder, milliseconds, a holder that is known to be dead, whether this one
#: is noted as the standby if it does not get the lease, whether it has only come: then it leaves a lease that nobody
#: gave back to those who have followed the log. Returns another holder (empty: none is known), or nothing.
ACQUIRE: Final = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and held ~= ARGV[3] then
  if ARGV[4] == '1' then redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
  return held
end
local free = redis.call('HGET', KEYS[3], 'free') or redis.call('EXISTS', KEYS[4]) == 0
if not held and ARGV[5] == '1' and not free then return '' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return false
"""

#: Keys: lease, standby, top. Arguments: holder, milliseconds, whether a standby gets the lease; else anybody may.
LET_GO: Final = """
local standby = redis.call('GET', KEYS[2])
if redis.call('GET', KEYS[1]) == ARGV[1] then
  if standby and ARGV[3] == '1' then
    redis.call('SET', KEYS[1], standby, 'PX', ARGV[2])
  else
    redis.call('DEL', KEYS[1])
    if redis.call('EXISTS', KEYS[3]) == 1 then redis.call('HSET', KEYS[3], 'free', '1') end
  end
end
if standby == ARGV[1] then redis.call('DEL', KEYS[2]) end
"""

#: Keys: lease, top, log. Arguments: holder, milliseconds, term. Returns the newest entry, the newest record, what was
#: lost, who began its term, which loss was accepted, and whether there is a log.
RENEW: Final = """
local top = redis.call('HMGET', KEYS[2], 'id', 'last', 'lost', 'who', 'accepted')
local held = redis.call('GET', KEYS[1])
local term = tonumber(string.match(top[1] or '0-0', '^%d+'))
if term == tonumber(ARGV[3]) and (not held or held == ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {top[1], top[2], top[3], top[4], top[5], redis.call('EXISTS', KEYS[3])}
"""

#: The end of the log. If its key is gone and the log is there, the key is made again from the log's newest entry. Redis
#: remembers the newest one that there ever was: a later one is lost, with its records.
_TOP: Final = """
local function newest(log, key)
  local top = redis.call('HMGET', key, 'id', 'last', 'lost', 'who', 'accepted', 'floor', 'by')
  if not top[1] and redis.call('EXISTS', log) == 1 then
    local entry = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
    if entry then
      top[1], top[2] = entry[1], string.match(entry[1], '%d+$')
      if entry[2][1] == 'base' then top[2] = entry[2][2] end
      redis.call('HSET', key, 'id', top[1], 'last', top[2])
      local stream = redis.call('XINFO', 'STREAM', log)
      for at = 1, #stream, 2 do
        local term, number = string.match(tostring(stream[at + 1]), '^(%d+)-(%d+)$')
        if stream[at] == 'last-generated-id' and stream[at + 1] ~= entry[1] then
          top[6] = term
          redis.call('HSET', key, 'floor', term)
          if tonumber(number) > tonumber(top[2]) then
            top[3] = number
            redis.call('HSET', key, 'lost', number)
          end
        end
      end
    end
  end
  return top
end
local function term(id) return tonumber(string.match(id or '0-0', '^%d+')) end
"""

#: Keys: log, top. Arguments: a term. Returns the end of the log as `RENEW` does, and after which record the next term
#: began; nothing: that is not there.
LOOK: Final = (
    _TOP
    + """
local top = newest(KEYS[1], KEYS[2])
local base = false
if term(top[1]) > tonumber(ARGV[1]) then
  local next = string.format('%d-0', tonumber(ARGV[1]) + 1)
  local claim = redis.call('XRANGE', KEYS[1], next, next)[1]
  if claim then base = claim[2][2] end
end
return {top[1], top[2], top[3], top[4], top[5], redis.call('EXISTS', KEYS[1]), base}
"""
)

#: Keys: top. Arguments: the newest entry that was seen, the record up to which is lost, the term in which it was known.
#: Writes a loss down, unless the end of the log is another one by now; returns whether it did. Terms that begin from
#: now on are later than all that the one who knew has seen.
NOTE_LOSS: Final = """
local top = redis.call('HMGET', KEYS[1], 'id', 'lost', 'floor')
if (top[1] or '0-0') ~= ARGV[1] then return 0 end
if tonumber(top[2] or '0') < tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], 'lost', ARGV[2]) end
if tonumber(top[3] or '0') < tonumber(ARGV[3]) then redis.call('HSET', KEYS[1], 'floor', ARGV[3]) end
return 1
"""

#: Keys: log, top, lease. Arguments: holder, the last record that counts (empty: the newest), whether a loss is
#: accepted, term and record of the end of the log that the claimer has compared with what it knows (empty: no matter).
#: Returns the entry (empty: there is a loss, and nothing was changed), the last record, what was lost, and, after what
#: this does not look for, who has written the newest group.
CLAIM: Final = (
    _TOP
    + """
if redis.call('GET', KEYS[3]) ~= ARGV[1] then return redis.error_reply('NOLEASE') end
local top = newest(KEYS[1], KEYS[2])
local last = top[2] or '0'
if ARGV[4] ~= '' and (term(top[1]) ~= tonumber(ARGV[4]) or tonumber(last) < tonumber(ARGV[5])) then
  return redis.error_reply('LOOKAGAIN')
end
if top[3] and ARGV[3] ~= '1' then return {'', last, top[3]} end
local base = ARGV[2] ~= '' and ARGV[2] or last
local claim = string.format('%d-0', math.max(term(top[1]), tonumber(top[6] or '0')) + 1)
redis.call('XADD', KEYS[1], claim, 'base', base, 'who', ARGV[1])
redis.call('HSET', KEYS[2], 'id', claim, 'last', base, 'who', string.format('%d %s', term(claim), ARGV[1]))
redis.call('HDEL', KEYS[2], 'free')
if tonumber(base) < tonumber(last) and not top[3] then redis.call('HSET', KEYS[2], 'lost', last) end
local lost = math.max(tonumber(top[3] or '0'), tonumber(last))
if ARGV[3] == '1' and lost > tonumber(base) then
  redis.call('HSET', KEYS[2], 'accepted', string.format('%d-%d', term(claim), lost))
end
return {claim, base, top[3] or '0', false, false, 1, false, top[7]}
"""
)

#: Keys: log, top. Arguments: the entry, the entry before it, its last record, the number of records, checksum, content,
#: whether a loss is accepted: then it is forgotten with the first entry, which shows that the log is another one.
#: An entry that is there already gets one more write, since the server counts replicas from a connection's last write.
APPEND: Final = """
local top = redis.call('HMGET', KEYS[2], 'id', 'lost', 'who')
if top[2] and ARGV[7] ~= '1' then return redis.error_reply('TAILLOST ' .. top[2]) end
local id = top[1] or '0-0'
if id ~= ARGV[1] then
  if id ~= ARGV[2] or redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('NOTLAST ' .. id) end
  redis.call('XADD', KEYS[1], ARGV[1], 'count', ARGV[4], 'sum', ARGV[5], 'data', ARGV[6])
end
redis.call('HSET', KEYS[2], 'id', ARGV[1], 'last', ARGV[3], 'by', top[3] or '')
if top[2] then redis.call('HDEL', KEYS[2], 'lost') end
return ARGV[1]
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

#: Keys: those that may be there, the top first, and then, in the same order, their new names. Returns how many were
#: there. The next term is left out: a tracker that sleeps finds, when it wakes up, a later term in the place of its own
#: one, and no beginning of the term after its own. So it takes itself for replaced, and nothing for lost.
#: The new top notes that a backup is to come.
RENAME: Final = """
local moved = 0
local id = redis.call('HGET', KEYS[1], 'id')
for place = 1, #KEYS / 2 do
  if redis.call('EXISTS', KEYS[place]) == 1 then
    redis.call('RENAME', KEYS[place], KEYS[#KEYS / 2 + place])
    moved = moved + 1
  end
end
if id then
  redis.call('HSET', KEYS[1], 'id', string.format('%d-0', tonumber(string.match(id, '^%d+')) + 1), 'last', '0')
end
redis.call('HSET', KEYS[1], 'restoring', '1')
return moved
"""


class Keys:
    """The names.

    >>> Keys(RedisAddress.parse("redis://localhost?prefix=billing")).log
    '{billing}:log'
    """

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self.base = f"{{{address.prefix}}}"
        self.log = f"{self.base}:log"
        self.top = f"{self.base}:top"
        self.lease = f"{self.base}:lease"
        self.standby = f"{self.base}:standby"
        self.snapshots = f"{self.base}:snapshots"
        self.unfinished = f"{self.base}:unfinished"
        self.confirmed = f"{self.base}:confirmed"
        self.marks = f"{self.base}:marks"
        self.set_aside = f"{self.base}:set-aside"

    def piece(self, entry: str, place: int) -> str:
        """Return the key of a snapshot's piece.

        Args:
            place: of the piece, from 0.
        """
        return f"{self.base}:snapshot:{entry}:{place}"

    def replaced(self, when: str) -> str:
        """Return the beginning of the keys of a journal that was replaced."""
        return f"{self.base}:replaced:{when}"

    def damaged(self, when: str) -> str:
        """Return the key of what was set aside because it could not be used."""
        return f"{self.base}:damaged:{when}"
