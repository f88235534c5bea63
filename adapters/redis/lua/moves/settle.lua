#!lua flags=allow-oom
-- claimed -> gone: the broker has confirmed. Fenced by the token: a lease that expired, or that another instance holds,
-- settles nothing.
--
-- KEYS  1 messages (hash)   2 claimed (zset id+token)   3 key index (hash)   4 counts (hash)   5 why (hash)
-- ARGV  two values for each message: member (id+token), index field or ''
-- Returns  the number settled; the caller no longer held the others
--- @include include/key_index
--- @include include/pieces
local MESSAGES, CLAIMED, INDEX, COUNTS, WHY = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local members = {}
for at = 1, #ARGV, 2 do members[#members + 1] = ARGV[at] end
local held, ids, fields = {}, {}, {}
for from = 1, #members, PIECE do
  local leases = redis.call('ZMSCORE', CLAIMED, unpack(members, from, math.min(from + PIECE - 1, #members)))
  for n, lease in ipairs(leases) do
    if lease then
      local member, field = members[from + n - 1], ARGV[(from + n - 1) * 2]
      local id = string.sub(member, 1, 20)
      held[#held + 1] = member
      ids[#ids + 1] = id
      if field ~= '' then fields[field] = (fields[field] or '') .. id end
    end
  end
end
if #held == 0 then return 0 end
in_pieces('ZREM', CLAIMED, held)
in_pieces('HDEL', MESSAGES, ids)
in_pieces('HDEL', WHY, ids)
for field, gone in pairs(fields) do index_remove(INDEX, field, gone) end
redis.call('HINCRBY', COUNTS, 'delivered', #held)
return #held
