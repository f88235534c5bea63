#!lua flags=allow-oom
-- claimed -> gone: the broker has confirmed. Fenced: a lease that ran out, or went to another, settles nothing.
--
-- KEYS  1 messages (hash)   2 claimed (zset id+token)   3 key index (hash)   4 counts (hash)   5 why (hash)
-- ARGV  pairs: member (id+token), index field or ''
-- Returns  how many were settled; the others were no longer the caller's
--- @include include/key_index
--- @include include/pieces
local members = {}
for at = 1, #ARGV, 2 do members[#members + 1] = ARGV[at] end
local held, ids, fields = {}, {}, {}
for from = 1, #members, PIECE do
  local leases = redis.call('ZMSCORE', KEYS[2], unpack(members, from, math.min(from + PIECE - 1, #members)))
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
in_pieces('ZREM', KEYS[2], held)
in_pieces('HDEL', KEYS[1], ids)
in_pieces('HDEL', KEYS[5], ids)
for field, gone in pairs(fields) do index_remove(KEYS[3], field, gone) end
redis.call('HINCRBY', KEYS[4], 'delivered', #held)
return #held
